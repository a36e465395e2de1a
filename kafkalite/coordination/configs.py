"""Configs: validation of dynamic config changes, and their records.

    current config ── changes ──▶ new config, validated ──▶ records of the difference

A resource is altered completely or not at all, independently of the others.  AlterConfigs replaces
all configs that are set, IncrementalAlterConfigs changes the keys it names; neither may change a
read-only key.  Append and subtract start from the key's default if nothing is set, as in Kafka.

As in Kafka, an error in a config of a topic or group is InvalidConfig, of a broker InvalidRequest.
An unknown key cannot be set on a broker either; Kafka takes it for a plug-in's.  Deleting a key
that is not set changes nothing, even if the key is unknown; an unknown logger is an error, as in
Kafka.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kafkalite.config.client_metrics import MATCH
from kafkalite.config.group_bounds import check_group_configs
from kafkalite.config.key import TEXT_LENGTH_MAX, ConfigKey, Type, UpdateMode, quoted
from kafkalite.config.resources import SCOPES, Resource
from kafkalite.config.settings import Settings
from kafkalite.config.topic import check_compaction_lags
from kafkalite.coordination import topic_names
from kafkalite.coordination.image import SUPERVISOR_ID, ClusterImage, config_records
from kafkalite.errors import (
    BrokerIdNotRegistered,
    InvalidConfig,
    InvalidRequest,
    KafkaError,
    PolicyViolation,
    UnknownTopicOrPartition,
)
from kafkalite.protocol.schemas.internal import TypedRecord

CONFIGURED_MAX = 10_000
"""Maximum number of resources that exist by their configs only: groups, subscriptions."""

ALTERED_SIZE_MAX = 4 << 20
"""Maximum size of the text that one decision may set: one batch of records, one bus message to
every node."""

CHANGES_MAX = 1_000
"""Maximum number of keys of one resource in a request: several times as many as exist."""

NAME_LENGTH_MAX = 249


class ConfigOperation(enum.IntEnum):
    """The effect of a change on a key; the values are those of IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """A requested change of one key."""

    key: str
    text: str | None = None
    operation: int = ConfigOperation.SET


class ConfigAlteration(NamedTuple):
    """The requested changes of one resource."""

    kind: int
    name: str
    changes: Sequence[ConfigChange]
    replaces: bool = False
    """True for AlterConfigs: keys that are not named are deleted."""

    @property
    def resource(self) -> tuple[int, str]:
        """The type and name of the resource."""
        return self.kind, self.name


Config = Mapping[str, str]


def alter(
    image: ClusterImage, wanted: Sequence[ConfigAlteration], settings: Settings
) -> tuple[dict[tuple[int, str], KafkaError | None], list[TypedRecord]]:
    """Alter resources; return None or an error for each, and the records.

    `settings` are the broker's.
    """
    assert len({each.resource for each in wanted}) == len(wanted)
    results: dict[tuple[int, str], KafkaError | None] = {}
    records: list[TypedRecord] = []
    size_left = ALTERED_SIZE_MAX
    configured = len(image.configs)
    for alteration in wanted:
        try:
            difference = _difference(image, alteration, settings)
            size = sum(len(name) + len(text or "") for name, text in difference.items())
            size += len(difference) * len(alteration.name)
            if size > size_left:
                raise PolicyViolation(
                    f"A request sets at most {ALTERED_SIZE_MAX} bytes of configs; split"
                    " it."
                )
            is_new = bool(difference) and not image.config_of(*alteration.resource)
            if is_new and alteration.kind != Resource.TOPIC and configured >= CONFIGURED_MAX:
                raise PolicyViolation(
                    f"At most {CONFIGURED_MAX} resources can have configs; delete the configs"
                    " of others first."
                )
        except KafkaError as error:
            results[alteration.resource] = error.copy()
            continue
        results[alteration.resource] = None
        size_left -= size
        configured += is_new
        records += config_records(alteration.kind, alteration.name, difference)
    return results, records


def check_kind(kind: int) -> Resource:
    """Return the resource type with this number; raise InvalidRequest if it has no configs."""
    if kind not in SCOPES:
        raise InvalidRequest(f"Unsupported resource type {kind}.")
    return Resource(kind)


def broker_id(name: str) -> int:
    """Return the node id of a broker resource's name."""
    if not (name.isascii() and name.isdigit() and len(name) < 11 and str(int(name)) == name):
        raise InvalidRequest(
            f"A broker resource is named by its node id; {quoted(name)} is not a node"
            " id."
        )
    return int(name)


def _difference(
    image: ClusterImage, alteration: ConfigAlteration, settings: Settings
) -> dict[str, str | None]:
    """Return the changed values by key, None for deleted keys."""
    kind = check_kind(alteration.kind)
    _check_changes(alteration)
    _check_name(image, kind, alteration.name)
    before = image.config_of(kind, alteration.name)
    after = dict(before)
    if alteration.replaces:
        named = {change.key for change in alteration.changes}
        for name in before.keys() - named:
            key = SCOPES[kind].get(name)
            if key is None or key.dynamic:
                del after[name]
    for change in alteration.changes:
        _apply(kind, alteration.name, change, before, after)
    if kind is Resource.TOPIC:
        check_compaction_lags(after)
    elif kind is Resource.GROUP and after != before:
        check_group_configs(settings.for_group(after))
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return {name: after.get(name) for name in changed}


def _check_changes(alteration: ConfigAlteration) -> None:
    if len(alteration.changes) > CHANGES_MAX:
        raise InvalidRequest(
            f"A request alters at most {CHANGES_MAX} keys of a resource; split"
            " it."
        )
    counts = Counter(change.key for change in alteration.changes)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise InvalidRequest(f"The key {quoted(twice[0])} occurs more than once.")
    for change in alteration.changes:
        if change.operation not in set(ConfigOperation):
            raise InvalidRequest(f"Unknown config operation {change.operation}.")
        if change.text is None and change.operation != ConfigOperation.DELETE:
            raise InvalidRequest(f"The key {quoted(change.key)} has no value.")


def _check_name(image: ClusterImage, kind: Resource, name: str) -> None:
    """Raise an error unless the resource exists or may be created."""
    if kind is Resource.BROKER and not name:
        return  # all nodes
    if kind in (Resource.BROKER, Resource.BROKER_LOGGER):
        if broker_id(name) not in image.nodes:
            raise BrokerIdNotRegistered(f"There is no broker {name}.")
        return
    if not name:
        raise InvalidRequest(
            "The resource name is empty; only brokers have cluster-wide default"
            " configs."
        )
    if kind is Resource.TOPIC:
        topic_names.check(name)
        if name not in image.topics:
            raise UnknownTopicOrPartition(f"Topic {name} does not exist.")
        if image.topics[name].internal:
            raise InvalidRequest(
                f"The configs of the internal topic {name} cannot be altered."
            )
    elif len(name) > NAME_LENGTH_MAX:
        raise InvalidRequest(f"A resource name has at most {NAME_LENGTH_MAX} characters.")


def _apply(
    kind: Resource, resource: str, change: ConfigChange, before: Config, after: dict[str, str]
) -> None:
    """Apply one change to `after`, once it has passed every check."""
    scope, name = SCOPES[kind], change.key
    if change.operation == ConfigOperation.DELETE and name not in scope:
        if kind is not Resource.BROKER_LOGGER:
            # A key of another version, or of none: Kafka's tools delete throttle keys on any topic.
            after.pop(name, None)
            return
    key: ConfigKey[Any] | None = None
    try:
        key = scope.named(name)
        if change.operation == ConfigOperation.DELETE:
            after.pop(name, None)
        else:
            after[name] = _text(kind, key, change, before.get(name))
        if before.get(name) != after.get(name):
            _check_update(kind, resource, key, before, after)
            _check_text(key, after.get(name))
    except InvalidConfig as error:
        if kind is Resource.BROKER or (kind is Resource.CLIENT_METRICS and key is not MATCH):
            raise InvalidRequest(*error.args) from None
        raise


def _text(kind: Resource, key: ConfigKey[Any], change: ConfigChange, text: str | None) -> str:
    """Return the new value of a key whose current value is `text`."""
    assert change.text is not None
    if change.operation == ConfigOperation.SET:
        return change.text
    if key.type is not Type.LIST:
        refused = InvalidRequest if kind is Resource.BROKER_LOGGER else InvalidConfig
        raise refused(f"{key.name} is not a list; APPEND and SUBTRACT apply to lists only.")
    entries = list(key.parse(text) if text is not None else key.default or ())
    for entry in entries_of(change.text):
        if change.operation == ConfigOperation.APPEND and entry not in entries:
            entries.append(entry)
        elif change.operation == ConfigOperation.SUBTRACT and entry in entries:
            entries.remove(entry)
    return ",".join(entries)


def entries_of(text: str) -> Iterator[str]:
    """Return the entries of a list value as written by a client."""
    return (entry.strip() for entry in text.split(",") if entry.strip())


def _check_update(
    kind: Resource, resource: str, key: ConfigKey[Any], before: Config, after: Config
) -> None:
    """Raise InvalidConfig unless the key may change on this resource."""
    if key.update is UpdateMode.READ_ONLY:
        # The static value of a broker's key is not known here.
        if kind is Resource.TOPIC and _value(key, before) == _value(key, after):
            return
        when = "is created" if kind is Resource.TOPIC else "starts"
        raise InvalidConfig(f"{key.name} is decided when the {kind.name.lower()} {when}.")
    if key.update is UpdateMode.CLUSTER_ONLY and resource not in ("", str(SUPERVISOR_ID)):
        raise InvalidConfig(
            f"{key.name} applies to the whole cluster: set it on broker {SUPERVISOR_ID}, or on all"
            " brokers by an empty name."
        )


def _value(key: ConfigKey[Any], config: Config) -> Any:
    return key.parse(config[key.name]) if key.name in config else key.default


def _check_text(key: ConfigKey[Any], text: str | None) -> None:
    if text is not None and len(text) > TEXT_LENGTH_MAX:
        raise InvalidConfig(f"{key.name} has at most {TEXT_LENGTH_MAX} characters.")
    if text is not None:
        key.parse(text)
