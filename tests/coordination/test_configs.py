"""Config alterations by the controller: their records, and the ones it refuses."""

from __future__ import annotations

import pytest

from kafkalite.config.resources import SCOPES, Resource
from kafkalite.coordination import configs
from kafkalite.coordination.configs import ConfigAlteration, ConfigChange, ConfigOperation
from kafkalite.coordination.controller import Controller
from kafkalite.coordination.image import config_records
from kafkalite.coordination.topics import NewTopic
from kafkalite.errors import (
    BrokerIdNotRegistered,
    InvalidConfig,
    InvalidRequest,
    InvalidTopicException,
    PolicyViolation,
    UnknownTopicOrPartition,
)
from kafkalite.protocol.schemas import internal
from tests.coordination.factories import DEDICATED, cluster_of, create, do

TOPIC, BROKER, LOGGER = Resource.TOPIC, Resource.BROKER, Resource.BROKER_LOGGER
METRICS, GROUP = Resource.CLIENT_METRICS, Resource.GROUP
SET, DELETE, APPEND, SUBTRACT = ConfigOperation


def alter(controller, kind, name, *changes, replaces=False, **options):
    """Alter one resource by (key, text) or (key, text, operation); return the error, if any."""
    wanted = ConfigAlteration(kind, name, [ConfigChange(*change) for change in changes], replaces)
    answers = do(controller, controller.alter_configs([wanted], **options))
    return answers[kind, name]


def topic_with(controller: Controller, **config: str) -> str:
    texts = {name.replace("_", "."): text for name, text in config.items()}
    create(controller, NewTopic("a", config=texts))
    return "a"


def set_on(controller, kind, name):
    return dict(controller.image.config_of(kind, name))


@pytest.fixture
def controller() -> Controller:
    return cluster_of(workers=2)


# -- alterations and their records ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name", "key", "text"),
    [
        (TOPIC, "a", "retention.ms", "5"),
        (BROKER, "", "num.partitions", "3"),
        (BROKER, "0", "num.partitions", "3"),
        (BROKER, "", "message.max.bytes", "3000"),
        (BROKER, "2", "fetch.max.bytes", "3000"),
        (LOGGER, "1", "kafkalite.storage", "ERROR"),
        (METRICS, "s", "interval.ms", "1000"),
        (GROUP, "g", "consumer.session.timeout.ms", "30000"),
    ],
)
def test_config_is_kept_until_it_is_deleted(controller, kind, name, key, text):
    topic_with(controller)
    assert alter(controller, kind, name, (key, text)) is None
    assert set_on(controller, kind, name) == {key: text}
    assert alter(controller, kind, name, (key, None, DELETE)) is None
    assert set_on(controller, kind, name) == {}
    assert controller.image.configs == {}


@pytest.mark.parametrize(
    ("kind", "name"), [(TOPIC, "a"), (BROKER, ""), (BROKER, "0"), (METRICS, "s"), (GROUP, "g")]
)
def test_delete_of_an_unknown_or_unset_config_changes_nothing(controller, kind, name):
    topic_with(controller)
    changes = [("nonsense.key", None, DELETE), ("leader.replication.throttled.rate", None, DELETE)]
    if kind is TOPIC:
        throttle = "follower.replication.throttled.replicas"
        changes += [(key, None, DELETE) for key in ("retention.ms", throttle)]
    assert alter(controller, kind, name, *changes) is None
    assert controller.image.configs == {} and not set_on(controller, kind, name)


def test_only_changed_configs_become_records(controller):
    topic_with(controller, retention_ms="5", segment_ms="6")
    wanted = ConfigAlteration(
        TOPIC, "a", [ConfigChange("retention.ms", "5"), ConfigChange("segment.ms", "7")]
    )
    result = controller.alter_configs([wanted])
    assert [record.fields["name"] for record in result.records] == ["segment.ms"]


def test_validate_only_changes_nothing(controller):
    topic_with(controller)
    assert alter(controller, TOPIC, "a", ("retention.ms", "5"), validate_only=True) is None
    assert isinstance(
        alter(controller, TOPIC, "a", ("retention.ms", "x"), validate_only=True), InvalidConfig
    )
    assert set_on(controller, TOPIC, "a") == {}


def test_replacement_resets_omitted_configs(controller):
    topic_with(controller, retention_ms="5", segment_ms="6")
    assert alter(controller, TOPIC, "a", ("retention.ms", "7"), replaces=True) is None
    assert set_on(controller, TOPIC, "a") == {"retention.ms": "7"}


def test_replacement_keeps_read_only_configs(controller):
    create(controller, NewTopic("a", config={**DEDICATED, "retention.ms": "5"}))
    assert alter(controller, TOPIC, "a", ("segment.ms", "7"), replaces=True) is None
    assert set_on(controller, TOPIC, "a") == {**DEDICATED, "segment.ms": "7"}


def test_invalid_change_refuses_only_its_own_resource(controller):
    topic_with(controller)
    wanted = [
        ConfigAlteration(
            TOPIC, "a", [ConfigChange("retention.ms", "5"), ConfigChange("segment.ms", "soon")]
        ),
        ConfigAlteration(BROKER, "", [ConfigChange("num.partitions", "3")]),
    ]
    answers = do(controller, controller.alter_configs(wanted))
    assert isinstance(answers[TOPIC, "a"], InvalidConfig)
    assert answers[BROKER, ""] is None
    assert set_on(controller, TOPIC, "a") == {}
    assert set_on(controller, BROKER, "") == {"num.partitions": "3"}


# -- lists ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "operation", "text", "after"),
    [
        (None, APPEND, "a,b", "a,b"),
        ("a", APPEND, "b", "a,b"),
        ("a,b", APPEND, "b,c", "a,b,c"),
        ("a", APPEND, "", "a"),
        ("a,b,c", SUBTRACT, "b", "a,c"),
        ("a,b", SUBTRACT, "x, b", "a"),
        ("a", SUBTRACT, "a", ""),
        (None, SUBTRACT, "a", ""),
    ],
)
def test_append_and_subtract_change_a_list_config(controller, before, operation, text, after):
    if before is not None:
        alter(controller, METRICS, "s", ("metrics", before))
    assert alter(controller, METRICS, "s", ("metrics", text, operation)) is None
    assert set_on(controller, METRICS, "s") == {"metrics": after}


def test_append_to_an_unset_list_starts_with_its_default(controller):
    topic_with(controller)
    assert alter(controller, TOPIC, "a", ("cleanup.policy", "delete", APPEND)) is None
    assert set_on(controller, TOPIC, "a") == {"cleanup.policy": "delete"}
    refused = alter(controller, TOPIC, "a", ("cleanup.policy", "keep", APPEND))
    assert isinstance(refused, InvalidConfig)
    assert alter(controller, TOPIC, "a", ("cleanup.policy", "delete", SUBTRACT)) is None
    assert set_on(controller, TOPIC, "a") == {"cleanup.policy": ""}


def test_compaction_lags_that_contradict_each_other_are_refused(controller):
    topic_with(controller)
    assert alter(controller, TOPIC, "a", ("max.compaction.lag.ms", "9")) is None
    refused = alter(controller, TOPIC, "a", ("min.compaction.lag.ms", "10"))
    assert isinstance(refused, InvalidConfig)
    assert "at most max.compaction.lag.ms, which is 9" in str(refused)
    assert alter(controller, TOPIC, "a", ("min.compaction.lag.ms", "9")) is None


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
def test_append_to_a_config_that_is_not_a_list_is_refused(controller, operation):
    topic_with(controller)
    fault = alter(controller, TOPIC, "a", ("retention.ms", "5", operation))
    assert isinstance(fault, InvalidConfig)
    fault = alter(controller, LOGGER, "0", ("kafkalite", "INFO", operation))
    assert isinstance(fault, InvalidRequest)


# -- refused alterations -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name", "change", "fault", "words"),
    [
        (TOPIC, "a", ("retention.ms", "soon"), InvalidConfig, "an integer"),
        (TOPIC, "a", ("segment.bytes", "7"), InvalidConfig, "at least"),
        (TOPIC, "a", ("retention", "7"), InvalidConfig, "did you mean"),
        (LOGGER, "0", ("kafka.server", None, DELETE), InvalidConfig, "not a configuration key"),
        (TOPIC, "a", ("cleanup.policy", "keep"), InvalidConfig, "delete, compact, both"),
        (TOPIC, "a", ("worker.dedicated", "true"), InvalidConfig, "when the topic is created"),
        (TOPIC, "a", ("retention.ms", None), InvalidRequest, "no value"),
        (TOPIC, "a", ("retention.ms", None, APPEND), InvalidRequest, "no value"),
        (TOPIC, "a", ("retention.ms", "7", 4), InvalidRequest, "operation 4"),
        (TOPIC, "a", ("retention.ms", "7", -1), InvalidRequest, "operation -1"),
        (TOPIC, "b", ("retention.ms", "7"), UnknownTopicOrPartition, "Topic b does not exist"),
        (TOPIC, "", ("retention.ms", "7"), InvalidRequest, "name is empty"),
        (TOPIC, "a/b", ("retention.ms", "7"), InvalidTopicException, ""),
        (BROKER, "", ("message.max.bytes", "big"), InvalidRequest, "an integer"),
        (BROKER, "", ("max.bytes", "7"), InvalidRequest, "not a configuration key"),
        (BROKER, "", ("num.io.threads", "7"), InvalidRequest, "one event loop"),
        (BROKER, "", ("workers", "2"), InvalidRequest, "when the broker starts"),
        (BROKER, "1", ("workers", "2"), InvalidRequest, "when the broker starts"),
        (BROKER, "1", ("num.partitions", "2"), InvalidRequest, "the whole cluster"),
        (BROKER, "1", ("log.retention.ms", "2"), InvalidRequest, "the whole cluster"),
        (BROKER, "3", ("message.max.bytes", "7"), BrokerIdNotRegistered, "no broker 3"),
        (BROKER, "x", ("message.max.bytes", "7"), InvalidRequest, "'x'"),
        (BROKER, "-1", ("message.max.bytes", "7"), InvalidRequest, "'-1'"),
        (BROKER, "01", ("message.max.bytes", "7"), InvalidRequest, "'01'"),
        (BROKER, "\u0661", ("message.max.bytes", "7"), InvalidRequest, "id"),
        (BROKER, "9" * 30, ("message.max.bytes", "7"), InvalidRequest, "id"),
        (LOGGER, "", ("kafkalite", "INFO"), InvalidRequest, "id"),
        (LOGGER, "9", ("kafkalite", "INFO"), BrokerIdNotRegistered, "no broker 9"),
        (LOGGER, "0", ("kafkalite", "LOUD"), InvalidConfig, "FATAL, ERROR, WARN"),
        (LOGGER, "0", ("kafka.server", "INFO"), InvalidConfig, "not a configuration key"),
        (METRICS, "", ("metrics", "*"), InvalidRequest, "name is empty"),
        (METRICS, "s", ("interval.ms", "99"), InvalidRequest, "between 100"),
        (METRICS, "s", ("interval", "99"), InvalidRequest, "not a configuration key"),
        (METRICS, "s", ("match", "client_id"), InvalidConfig, "SELECTOR=PATTERN"),
        (METRICS, "s", ("match", "host=a"), InvalidConfig, "client_software_name"),
        (METRICS, "s", ("match", "client_id=("), InvalidConfig, "regular expression"),
        (METRICS, "s", ("match", "client_id=a,client_id=b"), InvalidConfig, "more than once"),
        (METRICS, "s", ("metrics", "x" * 10_001), InvalidRequest, "at most 10000"),
        (METRICS, "s" * 250, ("metrics", "*"), InvalidRequest, "at most 249"),
        (GROUP, "", ("x", "1"), InvalidRequest, "name is empty"),
        (GROUP, "g", ("streams.session.timeout.ms", "1"), InvalidConfig, "later version"),
        (GROUP, "g", ("consumer.session.timeout.ms", "999"), InvalidConfig, "group.consumer.min."),
        (GROUP, "g", ("consumer.session.timeout.ms", "60001"), InvalidConfig, "group.consumer.max"),
        (GROUP, "g", ("consumer.session.timeout.ms", "5000"), InvalidConfig, "greater than consum"),
        (GROUP, "g", ("consumer.heartbeat.interval.ms", "99"), InvalidConfig, "min.heartbeat"),
        (GROUP, "g", ("consumer.assignment.interval.ms", "-1"), InvalidConfig, "at least 0"),
        (GROUP, "g", ("share.session.timeout.ms", "60001"), InvalidConfig, "group.share.max.sess"),
        (GROUP, "g", ("share.heartbeat.interval.ms", "99"), InvalidConfig, "group.share.min.heart"),
        (GROUP, "g", ("share.record.lock.duration.ms", "60001"), InvalidConfig, "max.record.lock"),
        (GROUP, "g", ("share.delivery.count.limit", "1"), InvalidConfig, "between 2"),
        (GROUP, "g", ("share.delivery.count.limit", "11"), InvalidConfig, "max.delivery.count"),
        (GROUP, "g", ("share.partition.max.record.locks", "4001"), InvalidConfig, "share.max.part"),
        (GROUP, "g", ("share.auto.offset.reset", "by_duration:1"), InvalidConfig, "by_duration"),
        (GROUP, "g", ("session.timeout.ms", "1"), InvalidConfig, "Unknown group config name"),
        (3, "x", ("x", "1"), InvalidRequest, "resource type 3"),
        (0, "", ("x", "1"), InvalidRequest, "resource type 0"),
    ],
)
def test_invalid_alteration_is_refused(controller, kind, name, change, fault, words):
    topic_with(controller)
    raised = alter(controller, kind, name, change)
    assert type(raised) is fault
    assert words in str(raised)
    assert controller.image.configs == {} and not set_on(controller, TOPIC, "a")


def test_repeated_key_is_refused(controller):
    topic_with(controller)
    fault = alter(controller, TOPIC, "a", ("retention.ms", "5"), ("retention.ms", None, DELETE))
    assert isinstance(fault, InvalidRequest)


def test_read_only_key_accepts_only_its_current_value(controller):
    create(controller, NewTopic("a", config=DEDICATED), NewTopic("b"))
    assert alter(controller, TOPIC, "a", ("worker.dedicated", "TRUE")) is None
    assert alter(controller, TOPIC, "b", ("worker.dedicated", "false")) is None
    for name, text in (("a", "false"), ("b", "true")):
        assert isinstance(alter(controller, TOPIC, name, ("worker.dedicated", text)), InvalidConfig)
    fault = alter(controller, TOPIC, "a", ("worker.dedicated", None, DELETE))
    assert isinstance(fault, InvalidConfig)


def test_configs_of_internal_topics_cannot_be_altered(controller):
    name = "__consumer_offsets"
    do(controller, controller.create_internal_topic(name, b"i" * 16, 1, {}))
    assert isinstance(alter(controller, TOPIC, name, ("retention.ms", "1")), InvalidRequest)


def test_unknown_stored_key_can_only_be_deleted(controller):
    for record in config_records(BROKER, "", {"of.tomorrow": "1"}):
        controller.replay(record)
    assert isinstance(alter(controller, BROKER, "", ("of.tomorrow", "2")), InvalidRequest)
    assert alter(controller, BROKER, "", ("of.tomorrow", None, DELETE)) is None
    assert controller.image.configs == {}


def test_number_of_configured_resources_is_bounded(controller, monkeypatch):
    monkeypatch.setattr(configs, "CONFIGURED_MAX", 2)
    for name in "ab":
        assert alter(controller, METRICS, name, ("metrics", "*")) is None
    assert isinstance(alter(controller, METRICS, "c", ("metrics", "*")), PolicyViolation)
    assert alter(controller, METRICS, "b", ("metrics", "x")) is None
    topic_with(controller)
    assert alter(controller, TOPIC, "a", ("retention.ms", "5")) is None


def test_size_of_an_alteration_is_bounded(controller, monkeypatch):
    monkeypatch.setattr(configs, "ALTERED_SIZE_MAX", 100)
    wanted = [ConfigAlteration(METRICS, name, [ConfigChange("metrics", "x" * 60)]) for name in "ab"]
    answers = do(controller, controller.alter_configs(wanted))
    assert answers[METRICS, "a"] is None
    assert isinstance(answers[METRICS, "b"], PolicyViolation)


def test_number_of_keys_in_an_alteration_is_bounded(controller, monkeypatch):
    monkeypatch.setattr(configs, "CHANGES_MAX", 2)
    topic_with(controller)
    keys = [("retention.ms", "5"), ("segment.ms", "5"), ("max.message.bytes", "5000")]
    assert alter(controller, TOPIC, "a", *keys[:2]) is None
    assert isinstance(alter(controller, TOPIC, "a", *keys), InvalidRequest)


# -- removed topics and nodes --------------------------------------------------------------------


def test_removed_node_loses_its_configs(controller):
    assert alter(controller, BROKER, "2", ("fetch.max.bytes", "3000")) is None
    assert alter(controller, LOGGER, "2", ("kafkalite", "ERROR")) is None
    do(controller, controller.remove_node(2))
    assert controller.image.configs == {}


def test_deleted_topic_loses_its_configs(controller):
    topic_with(controller)
    alter(controller, TOPIC, "a", ("retention.ms", "5"))
    do(controller, controller.delete_topics({controller.image.topics["a"].topic_id: "a"}))
    topic_with(controller)
    assert set_on(controller, TOPIC, "a") == {}


def test_snapshot_records_restore_the_configs(controller):
    topic_with(controller, retention_ms="5")
    alter(controller, BROKER, "", ("num.partitions", "3"), ("fetch.max.bytes", "2000"))
    alter(controller, BROKER, "1", ("fetch.max.bytes", "3000"))
    alter(controller, METRICS, "s", ("metrics", "*"))
    again = Controller()
    for record in controller.records():
        again.replay(internal.read(internal.write(record)))
    assert again.image.configs == controller.image.configs
    assert len(again.image.configs) == 3
    assert set_on(again, TOPIC, "a") == {"retention.ms": "5"}


def test_every_resource_type_has_a_key_scope():
    assert SCOPES.keys() == set(Resource)
