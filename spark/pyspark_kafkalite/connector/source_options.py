"""Source options, validated: those of Spark's Kafka source and some more.

    kafka.bootstrap.servers      required; every other kafka.X is the client's setting X
    assign | subscribe | subscribePattern
    startingTimestamp > startingOffsetsByTimestamp > startingOffsets     (ending… in a batch)

Names are case-insensitive.  An invalid value is a ValueError that names the option and the
correction.

Not in Spark's source: `columns`, `maxBytesPerTrigger`, `commitGroup`, startingOffsets=group,
`rangesOnly`.

Left out: `interceptor.classes` and deserializers, as in Spark; delegation tokens
(`spark.kafka.clusters.*`) and consumer pools (`spark.kafka.consumer.cache.*`), which belong to the
JVM.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Mapping
from typing import NamedTuple

from kafkalite import TopicPartition
from kafkalite.client import consumer_settings, producer_settings
from kafkalite.errors import InvalidConfig
from pyspark_kafkalite.connector.offset_ranges import (
    EARLIEST,
    INT64_MAX,
    LATEST,
    Offsets,
    by_partition,
    parsed,
)
from pyspark_kafkalite.decoding import OPTIONS as DECODING

log = logging.getLogger("pyspark_kafkalite")

KAFKA = "kafka."
REFUSED = {
    "auto.offset.reset": "use startingOffsets",
    "key.deserializer": "keys are read as bytes; cast them in the query",
    "value.deserializer": "values are read as bytes; cast them, or use value_format",
    "enable.auto.commit": "offsets are kept in the checkpoint; commitGroup also commits them",
    "interceptor.classes": "interceptors are not supported",
}
REFUSED_OF_SINK = {
    "key.serializer": "keys are bytes or text; cast them in the query",
    "value.serializer": "values are bytes or text; cast them in the query",
    "transactional.id": "the sink does not write in transactions",
}
STRATEGIES = ("assign", "subscribe", "subscribePattern")
STARTING = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
ENDING = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
KNOWN = (
    *STRATEGIES, *STARTING, *ENDING,
    "startingOffsetsByTimestampStrategy", "failOnDataLoss", "minPartitions",
    "maxRecordsPerPartition", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
    "maxBytesPerTrigger", "includeHeaders", "groupIdPrefix", "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "columns", "commitGroup",
    "rangesOnly", "topic", "path", *DECODING,
)  # fmt: skip
TRIGGER_BYTES = 1 << 30
"""Default size of a micro-batch in bytes; limits the first one from the earliest offset."""

DELAYS_S = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "": 0.001}
SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class OffsetBound(NamedTuple):
    """Starting or ending bound of a read."""

    option: str
    """Name of the option that gave it."""
    everywhere: int | None = None
    """EARLIEST, LATEST, or with `timed` milliseconds since 1970, for all partitions."""
    offsets: Offsets | None = None
    """By partition: EARLIEST, LATEST, or an offset; with `timed` milliseconds since 1970."""
    topics: dict[str, int] | None = None
    """EARLIEST or LATEST for all partitions of a topic."""
    timed: bool = False
    group: bool = False
    """The offsets committed by `kafka.group.id` or `commitGroup`, else the earliest."""


class SourceOptions(NamedTuple):
    """All options of the source; picklable, and the same on driver and executors."""

    settings: dict[str, str]
    """The client's settings, by Kafka's names."""
    assign: tuple[TopicPartition, ...]
    subscribe: tuple[str, ...]
    pattern: str
    starting: OffsetBound
    ending: OffsetBound
    timestamp_strategy: str
    fail_on_data_loss: bool
    partitions_min: int | None
    records_max: int | None
    """Maximum per Spark partition."""
    offsets_max: int | None
    """Maximum per micro-batch; `offsets_min` and `bytes_max` are per micro-batch as well."""
    offsets_min: int | None
    delay_s: float
    bytes_max: int
    timeout_s: float
    retries: int
    retry_s: float
    commit_group: str | None


def source_options(options: Mapping[str, str], *, stream: bool | None) -> SourceOptions:
    """Return the options of a reader; raise ValueError if one is invalid.

    `stream` is None when Spark requests the schema, before it is known.
    """
    lowered = {name.lower(): value for name, value in options.items()}
    warn_about_unknown(lowered)
    assign, subscribe, pattern = strategy(lowered)
    starting = where(lowered, STARTING, LATEST if stream else EARLIEST)
    ending = where(lowered, ENDING, LATEST)
    if stream:
        for name in ENDING:
            if name.lower() in lowered:
                raise ValueError(f"{name} is not allowed in a streaming query; remove it.")
    elif stream is not None:
        check_batch(starting, ending)
        for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
            if name.lower() in lowered:
                log.warning("Option %s has no effect in a batch query.", name)
    offsets_max = positive(lowered, "maxOffsetsPerTrigger", None)
    offsets_min = positive(lowered, "minOffsetsPerTrigger", None)
    if offsets_max is not None and offsets_min is not None and offsets_min > offsets_max:
        raise ValueError(f"minOffsetsPerTrigger ({offsets_min}) must be at most"
                         f" maxOffsetsPerTrigger ({offsets_max}).")  # fmt: skip
    by_strategy = lowered.get("startingoffsetsbytimestampstrategy", "error").strip().lower()
    if by_strategy not in ("error", "latest"):
        raise ValueError(f"startingOffsetsByTimestampStrategy must be error or latest, not"
                         f" {by_strategy!r}.")  # fmt: skip
    settings = client_settings(lowered, sink=False)
    commit_group = lowered.get("commitgroup", "").strip() or None
    if starting.group and not (commit_group or settings.get("group.id")):
        raise ValueError("startingOffsets=group requires commitGroup or kafka.group.id.")
    return SourceOptions(
        settings=settings,
        assign=assign,
        subscribe=subscribe,
        pattern=pattern,
        starting=starting,
        ending=ending,
        timestamp_strategy=by_strategy,
        fail_on_data_loss=boolean(lowered, "failOnDataLoss", True),
        partitions_min=positive(lowered, "minPartitions", None),
        records_max=positive(lowered, "maxRecordsPerPartition", None),
        offsets_max=offsets_max,
        offsets_min=offsets_min,
        delay_s=delay_s(lowered.get("maxtriggerdelay", "15m")),
        bytes_max=size(lowered.get("maxbytespertrigger", str(TRIGGER_BYTES)), "maxBytesPerTrigger"),
        timeout_s=whole(lowered, "kafkaConsumer.pollTimeoutMs", 120_000, 1) / 1000,
        retries=whole(lowered, "fetchOffset.numRetries", 3, 0),
        retry_s=whole(lowered, "fetchOffset.retryIntervalMs", 10, 0) / 1000,
        commit_group=commit_group,
    )


def warn_about_unknown(lowered: Mapping[str, str]) -> None:
    """Log a warning for unknown options that resemble a known one; Spark ignores them."""
    known = {name.lower(): name for name in KNOWN}
    for name in lowered:
        if name in known or name.startswith(KAFKA):
            continue
        near = difflib.get_close_matches(name, known, 1, 0.8)
        if near:
            log.warning("Option %s is unknown; did you mean %s?", name, known[near[0]])


def strategy(lowered: Mapping[str, str]) -> tuple[tuple[TopicPartition, ...], tuple[str, ...], str]:
    """Return the partitions, topics or topic name pattern to read."""
    given = [name for name in STRATEGIES if name.lower() in lowered]
    if not given:
        raise ValueError("One of the options assign, subscribe and subscribePattern must be"
                         ' specified, as in .option("subscribe", "flights").')  # fmt: skip
    if len(given) > 1:
        raise ValueError(f"Only one of {', '.join(given)} can be specified; remove the others.")
    text = lowered[given[0].lower()].strip()
    if given == ["assign"]:
        return assigned(text), (), ""
    if given == ["subscribe"]:
        topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        if not topics:
            raise ValueError("No topics to subscribe to: subscribe must be a list like a,b,c, not"
                             f" {text!r}.")  # fmt: skip
        return (), topics, ""
    if not text:
        raise ValueError(
            "Pattern to subscribe is empty: subscribePattern must be one like flights-.*"
        )
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(
            f"subscribePattern {text!r} is not a valid regular expression: {error}."
        ) from None
    return (), (), text


def assigned(text: str) -> tuple[TopicPartition, ...]:
    """Return the partitions of {"topic": [0, 1]}."""
    example = '{"flights": [0, 1]}'
    found = []
    for topic, partitions in parsed(text, "assign", example).items():
        if not isinstance(partitions, list) or not all(
            type(partition) is int and partition >= 0 for partition in partitions
        ):
            raise ValueError(f"assign must be like {example}; topic {topic!r} has {partitions!r}.")
        found += [TopicPartition(topic, partition) for partition in partitions]
    if not found:
        raise ValueError(
            f"No topicpartitions to assign: assign must be like {example}, not {text!r}."
        )
    return tuple(dict.fromkeys(found))


def where(lowered: Mapping[str, str], names: tuple[str, str, str], default: int) -> OffsetBound:
    """Return a bound from the first of the three options that is set."""
    for name in names:
        text = lowered.get(name.lower())
        if text is None:
            continue
        text = text.strip()
        if name.endswith("ByTimestamp"):
            return OffsetBound(name, offsets=by_partition(text, name, 0), timed=True)
        if name.endswith("Timestamp"):
            if not is_number(text):
                raise ValueError(
                    f"{name} must be a number of milliseconds since 1970, not {text!r}."
                )
            return OffsetBound(name, everywhere=int(text), timed=True)
        return offsets_where(name, text)
    return OffsetBound(names[-1], everywhere=default)


def offsets_where(name: str, text: str) -> OffsetBound:
    """Return a bound from earliest, latest, group, or JSON by topic or partition."""
    named = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in named:
        return OffsetBound(name, everywhere=named[text.lower()])
    if text.lower() == "group" and name == STARTING[-1]:
        return OffsetBound(name, group=True)
    if not text.startswith("{"):
        raise ValueError(f"{name} must be earliest, latest or JSON like"
                         f' {{"flights": {{"0": 23}}}}, not {text!r}.')  # fmt: skip
    topics, partitions = {}, {}
    for topic, place in parsed(text, name, '{"flights": {"0": 23}}').items():
        if isinstance(place, str) and place.lower() in named:
            topics[topic] = named[place.lower()]
        else:
            partitions[topic] = place
    return OffsetBound(
        name, offsets=by_partition(json.dumps(partitions), name, EARLIEST), topics=topics
    )


def check_batch(starting: OffsetBound, ending: OffsetBound) -> None:
    """Raise ValueError for a batch that starts at the latest or ends at the earliest offsets."""
    for place, refused, name in ((starting, LATEST, "latest"), (ending, EARLIEST, "earliest")):
        values = {place.everywhere, *(place.offsets or {}).values(), *(place.topics or {}).values()}
        if not place.timed and refused in values:
            raise ValueError(f"{place.option} cannot be {name} ({refused}) in a batch query:"
                             " no record would be read.")  # fmt: skip


def client_settings(options: Mapping[str, str], *, sink: bool) -> dict[str, str]:
    """Return every kafka.X as the client's X; raise ValueError for an invalid one."""
    refused = REFUSED_OF_SINK if sink else REFUSED
    settings = {}
    for name, value in options.items():
        setting = name.lower().removeprefix(KAFKA)
        if not name.lower().startswith(KAFKA):
            continue
        if setting in refused:
            raise ValueError(f"{KAFKA}{setting} cannot be specified: {refused[setting]}.")
        settings[setting] = value
    if not settings.get("bootstrap.servers", "").strip():
        raise ValueError('kafka.bootstrap.servers must be specified, as in'
                         ' .option("kafka.bootstrap.servers", "127.0.0.1:9092").')  # fmt: skip
    try:
        (producer_settings if sink else consumer_settings)(None, settings)
    except InvalidConfig as error:
        raise ValueError(f"Invalid option kafka.*: {error}") from None
    return settings


def boolean(options: Mapping[str, str], name: str, default: bool) -> bool:
    """Return an option that is true or false."""
    text = str(options.get(name, options.get(name.lower(), default))).strip().lower()
    if text not in ("true", "false"):
        raise ValueError(f"{name} must be true or false, not {text!r}.")
    return text == "true"


def positive(options: Mapping[str, str], name: str, default: int | None) -> int | None:
    """Return an option that is an integer above 0."""
    if name not in options and name.lower() not in options:
        return default
    return whole(options, name, 0, 1)


def whole(options: Mapping[str, str], name: str, default: int, least: int) -> int:
    """Return an option that is an integer of at least `least`."""
    text = str(options.get(name, options.get(name.lower(), default))).strip()
    if not is_number(text) or int(text) < least:
        raise ValueError(f"{name} must be an integer of at least {least}, not {text!r}.")
    return int(text)


def is_number(text: str) -> bool:
    """Return whether the text is a non-negative integer of at most 63 bits; safe for any length."""
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(INT64_MAX))
    return digits and int(text) <= INT64_MAX


def delay_s(text: str) -> float:
    """Return the seconds of a duration like 15m, 30s or 500ms; a bare number is milliseconds."""
    found = re.fullmatch(r"(\d{1,15})\s*([a-z]*)", text.strip().lower())
    if not found or found[2] not in DELAYS_S:
        raise ValueError(
            f"maxTriggerDelay must be a duration like 15m, 30s or 500ms, not {text!r}."
        )
    return int(found[1]) * DELAYS_S[found[2]]


def size(text: str, name: str) -> int:
    """Return the bytes of a size like 512m or 1g."""
    found = re.fullmatch(r"(\d{1,15})\s*([kmgt]?)b?", text.strip().lower())
    if not found or not int(found[1]):
        raise ValueError(f"{name} must be a size like 512m or 1g, not {text!r}.")
    return int(found[1]) * SIZES[found[2]]
