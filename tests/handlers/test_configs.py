"""Config APIs of a real node: described, altered, applied at once and after a restart."""

from __future__ import annotations

import logging

import pytest

from kafkalite import errors
from kafkalite.broker.node_settings import reactor_limits
from kafkalite.broker.security import AclOperation
from kafkalite.config.broker import BROKER, FETCH_MAX_BYTES, LOG_RETENTION_CHECK_INTERVAL_MS
from kafkalite.config.resources import LOGGER, SCOPES, Resource
from kafkalite.config.settings import Settings
from kafkalite.config.topic import MAX_MESSAGE_BYTES, RETENTION_MS, TOPIC
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.configs import (
    ALTER_CONFIGS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_CONFIG_RESOURCES,
)
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.topics import CREATE_TOPICS
from kafkalite.records.batch import Record, build
from tests.handlers.denying import Denying

SET, DELETE, APPEND, SUBTRACT = range(4)
DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT = range(1, 6)
DYNAMIC_LOGGER, DYNAMIC_METRICS, DYNAMIC_GROUP = 6, 7, 8
A_TOPIC = (Resource.TOPIC, "a")
ALL, THIS = (Resource.BROKER, ""), (Resource.BROKER, "0")


def describe(broker, *resources, version=4, keys=None, **options):
    """Describe resources given as (kind, name); return the results by (kind, name)."""
    asked = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        for kind, name in resources
    ]
    results = broker.request(DESCRIBE_CONFIGS, version, resources=asked, **options).results
    return {(result.resource_type, result.resource_name): result for result in results}


def configs(broker, resource, **options):
    """Return the described configs of one resource, by key."""
    (result,) = describe(broker, resource, **options).values()
    assert (result.error_code, result.error_message) == (0, None)
    return {entry.name: entry for entry in result.configs}


def value_and_source(broker, resource, key):
    """Return the value and the source of one key."""
    entry = configs(broker, resource)[key]
    return entry.value, entry.config_source


def resource_changes(*wanted):
    return [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [
                {"name": change[0], "value": change[1], "config_operation": (*change, SET)[2]}
                for change in changes
            ],
        }
        for (kind, name), *changes in wanted
    ]


def alter(broker, *wanted, version=1, **options):
    """Alter resources given as (resource, (key, text[, operation]), …); return ordered results."""
    return broker.request(
        INCREMENTAL_ALTER_CONFIGS, version, resources=resource_changes(*wanted), **options
    ).responses


def put(broker, resource, **texts):
    """Set keys of one resource, which must succeed."""
    changes = [(name.replace("_", "."), text) for name, text in texts.items()]
    (answer,) = alter(broker, (resource, *changes))
    assert (answer.error_code, answer.error_message) == (0, None)


def replace(broker, *wanted, version=2, **options):
    """Replace the settings of resources; return the results in order."""
    resources = resource_changes(*wanted)
    for resource in resources:
        for config in resource["configs"]:
            del config["config_operation"]
    return broker.request(ALTER_CONFIGS, version, resources=resources, **options).responses


# -- DescribeConfigs -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 5))
def test_describe_configs_returns_all_topic_keys_with_their_sources(broker, version):
    broker.create("a", retention_ms="5")
    found = configs(broker, A_TOPIC, version=version)
    assert found.keys() == TOPIC.keys()
    own, default, static = found["retention.ms"], found["segment.bytes"], found["durability"]
    assert (own.value, own.config_source, own.read_only) == ("5", DYNAMIC_TOPIC, False)
    assert (default.value, default.config_source) == (str(1 << 30), DEFAULT)
    assert (static.value, static.config_source) == ("os", STATIC)
    assert not own.is_sensitive
    assert found["worker.dedicated"].read_only
    if version >= 3:
        assert (own.config_type, default.config_type) == (5, 3)


def test_describe_configs_returns_synonyms_and_docs_on_request(broker):
    broker.create("a", retention_ms="5")
    plain = configs(broker, A_TOPIC)["retention.ms"]
    assert (plain.synonyms, plain.documentation) == ([], None)
    whole = configs(broker, A_TOPIC, include_synonyms=True, include_documentation=True)
    entry = whole["retention.ms"]
    assert entry.documentation == RETENTION_MS.doc
    assert [(each.name, each.value, each.source) for each in entry.synonyms] == [
        ("retention.ms", "5", DYNAMIC_TOPIC),
        ("log.retention.hours", "168", DEFAULT),
    ]


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (None, TOPIC.keys()),
        ([], TOPIC.keys()),
        (["retention.ms", "no.such"], {"retention.ms"}),
        (["no.such"], set()),
    ],
)
def test_describe_configs_returns_only_requested_keys(broker, keys, names):
    broker.create("a")
    assert configs(broker, A_TOPIC, keys=keys).keys() == names


def test_describe_configs_keeps_the_order_of_requested_keys(broker):
    broker.create("a")
    names = ["segment.bytes", "cleanup.policy", "retention.ms", "compression.type"]
    assert [*configs(broker, A_TOPIC, keys=names)] == names
    assert [*configs(broker, A_TOPIC, keys=names[::-1])] == names[::-1]


def test_unknown_topic_config_returns_the_error_text_of_kafka(broker):
    broker.create("a")
    (answer,) = alter(broker, (A_TOPIC, ("no.such", "1")))
    assert answer.error_code == errors.InvalidConfig.code
    assert "Unknown topic config name: no.such" in answer.error_message


def test_describe_configs_of_a_broker_returns_actual_values(broker):
    found = configs(broker, THIS)
    assert found.keys() == BROKER.keys()
    port = broker.listener.getsockname()[1]
    assert {name: found[name].value for name in ("node.id", "listeners", "log.dirs")} == {
        "node.id": "0",
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": str(broker.directory),
    }
    assert found["advertised.listeners"].value == f"PLAINTEXT://localhost:{port}"
    assert found["log.retention.ms"].value is None
    assert {name for name, entry in found.items() if entry.read_only} == {
        key.name for key in BROKER.values() if not key.dynamic
    }


def test_describe_configs_of_all_brokers_returns_only_set_keys(broker):
    assert configs(broker, ALL) == {}
    put(broker, ALL, message_max_bytes="3000")
    put(broker, THIS, fetch_max_bytes="2000")
    (entry,) = configs(broker, ALL, include_synonyms=True).values()
    assert (entry.name, entry.value) == ("message.max.bytes", "3000")
    assert entry.config_source == DYNAMIC_DEFAULT
    assert [each.source for each in entry.synonyms] == [DYNAMIC_DEFAULT]


def test_describe_configs_orders_synonyms_by_precedence(broker):
    broker.restart(**{"message.max.bytes": "1000"})
    put(broker, ALL, message_max_bytes="2000")
    put(broker, THIS, message_max_bytes="3000")
    entry = configs(broker, THIS, include_synonyms=True)["message.max.bytes"]
    assert (entry.value, entry.config_source) == ("3000", DYNAMIC_BROKER)
    assert [(each.value, each.source) for each in entry.synonyms] == [
        ("3000", DYNAMIC_BROKER), ("2000", DYNAMIC_DEFAULT), ("1000", STATIC),
        ("1048588", DEFAULT),
    ]  # fmt: skip
    broker.create("a")
    assert value_and_source(broker, A_TOPIC, "max.message.bytes") == ("3000", DYNAMIC_BROKER)


def test_describe_configs_accepts_unknown_subscription_and_group(broker):
    found = configs(broker, (Resource.CLIENT_METRICS, "s"))
    assert found.keys() == SCOPES[Resource.CLIENT_METRICS].keys()
    assert {entry.config_source for entry in found.values()} == {DEFAULT}
    put(broker, (Resource.CLIENT_METRICS, "s"), metrics="*")
    assert value_and_source(broker, (Resource.CLIENT_METRICS, "s"), "metrics") == (
        "*",
        DYNAMIC_METRICS,
    )
    found = configs(broker, (Resource.GROUP, "g"))
    assert found.keys() == SCOPES[Resource.GROUP].keys()
    assert {entry.config_source for entry in found.values()} == {DEFAULT}


def test_group_overrides_the_default_of_the_broker_within_its_bounds(broker):
    group, key = (Resource.GROUP, "g"), "consumer.session.timeout.ms"
    put(broker, ALL, group_consumer_session_timeout_ms="20000")
    assert value_and_source(broker, group, key) == ("20000", DYNAMIC_DEFAULT)
    put(broker, group, consumer_session_timeout_ms="30000")
    assert value_and_source(broker, group, key) == ("30000", DYNAMIC_GROUP)
    assert configs(broker, (Resource.GROUP, "other"))[key].value == "20000"
    (listed,) = broker.request(LIST_CONFIG_RESOURCES, 1, resource_types=[32]).config_resources
    assert listed.resource_name == "g"
    put(broker, ALL, group_consumer_max_session_timeout_ms="25000")
    (refused,) = alter(broker, (group, (key, "26000")))
    assert refused.error_code == errors.InvalidConfig.code
    assert refused.error_message.endswith("group.consumer.max.session.timeout.ms")
    broker.restart()
    assert value_and_source(broker, group, key) == ("30000", DYNAMIC_GROUP)


@pytest.mark.parametrize(
    ("resource", "fault"),
    [
        ((Resource.TOPIC, "b"), errors.UnknownTopicOrPartition),
        ((Resource.TOPIC, ""), errors.InvalidTopicException),
        ((Resource.TOPIC, "a/b"), errors.InvalidTopicException),
        ((Resource.BROKER, "1"), errors.InvalidRequest),
        ((Resource.BROKER, "x"), errors.InvalidRequest),
        ((Resource.BROKER_LOGGER, ""), errors.InvalidRequest),
        ((Resource.BROKER_LOGGER, "1"), errors.InvalidRequest),
        ((Resource.CLIENT_METRICS, ""), errors.InvalidRequest),
        ((Resource.GROUP, ""), errors.InvalidRequest),
        ((3, "a"), errors.InvalidRequest),
        ((-1, "a"), errors.InvalidRequest),
    ],
)
def test_describe_configs_error_of_one_resource_leaves_others(broker, resource, fault):
    broker.create("a")
    results = describe(broker, resource, A_TOPIC)
    assert (results[resource].error_code, results[resource].configs) == (fault.code, [])
    assert results[resource].error_message
    assert (results[A_TOPIC].error_code, len(results[A_TOPIC].configs)) == (0, len(TOPIC))


def test_describe_configs_keeps_values_of_similar_topics_apart(broker):
    texts = {"a": "5", "b": "5", "c": "7", "d": None}
    for name, text in texts.items():
        broker.create(name, **({"retention_ms": text} if text else {}))
    results = describe(broker, *((Resource.TOPIC, name) for name in texts))
    for name, text in texts.items():
        values = {entry.name: entry.value for entry in results[Resource.TOPIC, name].configs}
        assert values["retention.ms"] == (text or str(RETENTION_MS.default))


def test_describe_configs_returns_a_repeated_resource_once(broker):
    answer = broker.request(
        DESCRIBE_CONFIGS, 4, resources=[{"resource_type": 4, "resource_name": ""}] * 3
    )
    assert len(answer.results) == 1


# -- altering ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
def test_incremental_alter_configs_of_every_version_changes_single_keys(broker, version):
    broker.create("a", retention_ms="5", segment_ms="6")
    changes = [("retention.ms", "7"), ("segment.ms", None, DELETE), ("cleanup.policy", "delete", 2)]
    (answer,) = alter(broker, (A_TOPIC, *changes), version=version)
    assert (answer.error_code, answer.error_message) == (0, None)
    assert (answer.resource_type, answer.resource_name) == A_TOPIC
    assert value_and_source(broker, A_TOPIC, "retention.ms") == ("7", DYNAMIC_TOPIC)
    assert value_and_source(broker, A_TOPIC, "segment.ms") == ("604800000", DEFAULT)
    assert value_and_source(broker, A_TOPIC, "cleanup.policy") == ("delete", DYNAMIC_TOPIC)


@pytest.mark.parametrize("version", range(3))
def test_alter_configs_of_every_version_replaces_all_keys(broker, version):
    broker.create("a", retention_ms="5", segment_ms="6")
    (answer,) = replace(broker, (A_TOPIC, ("retention.ms", "7")), version=version)
    assert (answer.error_code, answer.error_message) == (0, None)
    assert value_and_source(broker, A_TOPIC, "retention.ms") == ("7", DYNAMIC_TOPIC)
    assert value_and_source(broker, A_TOPIC, "segment.ms") == ("604800000", DEFAULT)


@pytest.mark.parametrize("ask", [alter, replace])
def test_alter_configs_has_a_result_for_each_resource_in_order(broker, ask):
    broker.create("a")
    wanted = [
        (A_TOPIC, ("retention.ms", "7")),
        ((Resource.TOPIC, "b"), ("retention.ms", "7")),
        (ALL, ("message.max.bytes", "x")),
        ((Resource.BROKER, "4"), ("message.max.bytes", "7")),
        (THIS, ("fetch.max.bytes", "2000")),
        ((7, "x"), ("x", "y")),
    ]
    answers = ask(broker, *wanted)
    assert [(answer.resource_type, answer.resource_name) for answer in answers] == [
        resource for resource, _ in wanted
    ]
    assert [answer.error_code for answer in answers] == [
        0, errors.UnknownTopicOrPartition.code, errors.InvalidRequest.code,
        errors.BrokerIdNotRegistered.code, 0, errors.InvalidRequest.code,
    ]  # fmt: skip
    assert value_and_source(broker, A_TOPIC, "retention.ms") == ("7", DYNAMIC_TOPIC)
    assert broker.node.settings[FETCH_MAX_BYTES] == 2000


@pytest.mark.parametrize("ask", [alter, replace])
def test_alter_configs_refuses_both_entries_of_a_repeated_resource(broker, ask):
    broker.create("a")
    answers = ask(broker, (A_TOPIC, ("retention.ms", "7")), (ALL,), (A_TOPIC, ("segment.ms", "7")))
    assert [answer.error_code for answer in answers] == [
        errors.InvalidRequest.code, 0, errors.InvalidRequest.code,
    ]  # fmt: skip
    assert value_and_source(broker, A_TOPIC, "retention.ms")[1] == DEFAULT


@pytest.mark.parametrize("ask", [alter, replace])
def test_alter_configs_with_validate_only_changes_nothing(broker, ask):
    broker.create("a")
    good, bad = (A_TOPIC, ("retention.ms", "7")), (ALL, ("message.max.bytes", "x"))
    answers = ask(broker, good, bad, validate_only=True)
    assert [answer.error_code for answer in answers] == [0, errors.InvalidRequest.code]
    assert value_and_source(broker, A_TOPIC, "retention.ms")[1] == DEFAULT


def test_alter_configs_with_null_value_returns_invalid_request(broker):
    broker.create("a")
    for ask in (alter, replace):
        (answer,) = ask(broker, (A_TOPIC, ("retention.ms", None)))
        assert answer.error_code == errors.InvalidRequest.code


def test_alter_configs_without_resources_returns_no_results(broker):
    assert alter(broker) == [] and replace(broker) == []


@pytest.mark.parametrize(
    ("resource", "code"),
    [
        (A_TOPIC, errors.TopicAuthorizationFailed.code),
        (THIS, errors.ClusterAuthorizationFailed.code),
        ((Resource.BROKER_LOGGER, "0"), errors.ClusterAuthorizationFailed.code),
        ((Resource.CLIENT_METRICS, "s"), errors.ClusterAuthorizationFailed.code),
        ((Resource.GROUP, "g"), errors.GroupAuthorizationFailed.code),
    ],
)
def test_configs_without_permission_return_authorization_failed(broker, resource, code):
    broker.create("a")
    broker.node.authorizer = Denying(AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)
    assert describe(broker, resource)[resource].error_code == code
    assert describe(broker, resource)[resource].configs == []
    (answer,) = alter(broker, (resource, ("retention.ms", "7")))
    assert answer.error_code == code


# -- a setting applies at once and after a restart -----------------------------------------------


def test_dynamic_configs_survive_a_restart_over_static_ones(broker):
    broker.create("a")
    put(broker, A_TOPIC, retention_ms="5")
    put(broker, ALL, message_max_bytes="2000")
    put(broker, THIS, fetch_max_bytes="3000")
    put(broker, (Resource.CLIENT_METRICS, "s"), metrics="*")
    broker.restart(**{"message.max.bytes": "1000", "log.segment.bytes": "2097152"})
    assert value_and_source(broker, A_TOPIC, "retention.ms") == ("5", DYNAMIC_TOPIC)
    assert value_and_source(broker, A_TOPIC, "max.message.bytes") == ("2000", DYNAMIC_DEFAULT)
    assert value_and_source(broker, A_TOPIC, "segment.bytes") == ("2097152", STATIC)
    assert value_and_source(broker, THIS, "fetch.max.bytes") == ("3000", DYNAMIC_BROKER)
    assert value_and_source(broker, (Resource.CLIENT_METRICS, "s"), "metrics") == (
        "*",
        DYNAMIC_METRICS,
    )


def test_altered_config_survives_a_kill(broker):
    put(broker, ALL, message_max_bytes="2000")
    after = broker.killed()
    assert value_and_source(after, ALL, "message.max.bytes") == ("2000", DYNAMIC_DEFAULT)
    after.close()


def test_altered_config_applies_to_an_open_log(broker):
    broker.create("a")
    broker.create("b", segment_bytes=str(2 << 20))
    here, own = (broker.node.replicas.leader(name, 0).log for name in "ab")
    put(broker, ALL, log_segment_bytes=str(3 << 20))
    assert (here.config.segment_bytes, own.config.segment_bytes) == (3 << 20, 2 << 20)
    put(broker, A_TOPIC, segment_bytes=str(4 << 20))
    assert here.config.segment_bytes == 4 << 20
    alter(broker, (A_TOPIC, ("segment.bytes", None, DELETE)))
    assert here.config.segment_bytes == 3 << 20
    alter(broker, (ALL, ("log.segment.bytes", None, DELETE)))
    assert here.config.segment_bytes == 1 << 30


def test_lowered_message_max_bytes_refuses_larger_batches(broker):
    broker.create("a")
    partition = broker.node.replicas.leader("a", 0)
    batch = build([Record(value=b"x" * 900)])
    partition.append(batch)
    put(broker, ALL, message_max_bytes="500")
    with pytest.raises(errors.MessageTooLarge):
        partition.append(batch)
    put(broker, A_TOPIC, max_message_bytes="5000")
    partition.append(batch)
    assert partition.log.config.settings[MAX_MESSAGE_BYTES] == 5000


def test_shortened_retention_applies_at_the_next_check(broker):
    broker.create("a")
    day_ms = 86_400_000
    broker.append("a", [broker.clock.wall_ms() - day_ms])
    log = broker.node.replicas.leader("a", 0).log
    log.roll()
    put(broker, A_TOPIC, retention_ms="1000")
    assert log.log_start_offset == 0
    put(broker, THIS, log_retention_check_interval_ms="50")
    assert broker.node.settings[LOG_RETENTION_CHECK_INTERVAL_MS] == 50
    broker.clock.advance(51)
    broker.until(lambda: log.log_start_offset == 1)


@pytest.mark.parametrize("mode", ["fsync", "interval", "os"])
@pytest.mark.parametrize("before", ["fsync", "interval", "os"])
def test_altered_durability_applies_to_existing_records(broker, before, mode):
    broker.create("a", durability=before)
    broker.append("a", [1, 2])
    put(broker, A_TOPIC, durability=mode)
    broker.append("a", [3])
    partition = broker.node.replicas.leader("a", 0)
    assert partition.high_watermark == 3
    assert partition.flushes_always == (mode == "fsync")
    if mode == "fsync":
        assert partition.log.durable_offset == 3


def test_altered_defaults_apply_to_new_topics(broker):
    put(broker, ALL, num_partitions="3", log_retention_ms="7")
    (answer,) = broker.request(
        CREATE_TOPICS, 7, topics=[{"name": "a", "num_partitions": -1, "replication_factor": -1}]
    ).topics
    assert answer.num_partitions == 3
    assert {c.name: c.config_source for c in answer.configs}["retention.ms"] == DYNAMIC_DEFAULT


def test_metadata_creates_no_topic_once_auto_creation_is_disabled(broker):
    put(broker, ALL, auto_create_topics_enable="false")
    (topic,) = broker.request(
        METADATA, 9, topics=[{"name": "a"}], allow_auto_topic_creation=True
    ).topics
    assert topic.error_code == errors.UnknownTopicOrPartition.code


def test_altered_connection_limits_apply_at_once(broker):
    put(broker, THIS, max_connections="9", max_connections_per_ip="8", connections_max_idle_ms="7")
    limits = broker.reactor.limits
    assert limits.connections_max == 9
    assert limits.connections_per_address_max == 8
    assert limits.idle_ms_max == 7


def test_reactor_limits_follow_the_memory_settings():
    static = Settings.broker(
        {"queued.max.request.bytes": "2000000", "queued.max.response.bytes": "3000000"}
    )
    limits = reactor_limits(static)
    assert (limits.held_size_max, limits.queued_sum_max) == (2_000_000, 3_000_000)
    assert reactor_limits(Settings.broker()).queued_sum_max == 256 << 20


def test_altered_fetch_session_slots_apply_at_once(broker):
    broker.create("a")
    wanted = {"topic": "a", "partitions": [{"partition": 0, "fetch_offset": 0}]}

    def begin():
        answer = broker.request(
            FETCH, 12, session_id=0, session_epoch=0, max_bytes=1000, topics=[wanted]
        )
        return answer.session_id

    assert begin() and begin() and begin()
    put(broker, THIS, max_incremental_fetch_session_cache_slots="1")
    assert len(broker.node.fetch_sessions) == 1
    put(broker, THIS, max_incremental_fetch_session_cache_slots="0")
    assert len(broker.node.fetch_sessions) == 0
    assert begin() == 0


def test_altered_storage_min_free_bytes_applies_at_once(broker):
    broker.create("a")
    put(broker, THIS, storage_min_free_bytes=str(1 << 60))
    with pytest.raises(errors.KafkaStorageError):
        broker.append("a", [1])
    put(broker, THIS, storage_min_free_bytes="0")  # works on a full disk too
    broker.append("a", [1])


def test_settings_listener_is_called_at_registration_and_on_each_change(broker):
    told = []
    broker.node.add_settings_listener(lambda settings: told.append(settings[FETCH_MAX_BYTES]))
    put(broker, THIS, fetch_max_bytes="2000")
    put(broker, (Resource.BROKER, ""), fetch_max_bytes="3000")
    put(broker, (Resource.CLIENT_METRICS, "s"), metrics="*")
    assert told == [55 << 20, 2000, 2000]


# -- loggers -------------------------------------------------------------------------------------


@pytest.fixture
def levels():
    """Restore the levels of the process's loggers afterwards."""
    before = {name: logging.getLogger(name).level for name in LOGGER}
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


@pytest.mark.usefixtures("levels")
def test_logger_levels_are_described_and_altered(broker):
    this = (Resource.BROKER_LOGGER, "0")
    assert configs(broker, this).keys() == LOGGER.keys()
    (answer,) = alter(broker, (this, ("kafkalite", "INFO"), ("kafkalite.storage", "ERROR")))
    assert answer.error_code == 0
    assert logging.getLogger("kafkalite.storage").level == logging.ERROR
    assert value_and_source(broker, this, "kafkalite.storage") == ("ERROR", DYNAMIC_LOGGER)
    assert value_and_source(broker, this, "kafkalite.broker") == ("INFO", DYNAMIC_LOGGER)
    alter(broker, (this, ("kafkalite.storage", None, DELETE)))
    assert value_and_source(broker, this, "kafkalite.storage") == ("INFO", DYNAMIC_LOGGER)


def test_alter_configs_of_loggers_is_refused(broker):
    this = (Resource.BROKER_LOGGER, "0")
    (answer,) = replace(broker, (this, ("kafkalite", "INFO")))
    assert answer.error_code == errors.InvalidRequest.code


# -- ListConfigResources -------------------------------------------------------------------------


def listed(broker, version, **request):
    answer = broker.request(LIST_CONFIG_RESOURCES, version, **request)
    assert answer.error_code == 0
    return {(entry.resource_type, entry.resource_name) for entry in answer.config_resources}


def test_list_config_resources_version_0_lists_only_subscriptions(broker):
    broker.create("a")
    put(broker, (Resource.CLIENT_METRICS, "s"), metrics="*")
    assert listed(broker, 0) == {(Resource.CLIENT_METRICS, "s")}


def test_list_config_resources_lists_resources_of_each_type(broker):
    broker.create("a")
    put(broker, (Resource.CLIENT_METRICS, "s"), metrics="*")
    put(broker, ALL, message_max_bytes="2000")
    everything = {
        A_TOPIC, THIS, (Resource.BROKER_LOGGER, "0"), (Resource.CLIENT_METRICS, "s"),
    }  # fmt: skip
    assert listed(broker, 1, resource_types=[]) == everything
    for kind in Resource:
        assert listed(broker, 1, resource_types=[kind, kind]) == {
            resource for resource in everything if resource[0] == kind
        }


def test_list_config_resources_of_unknown_type_is_unsupported(broker):
    answer = broker.request(LIST_CONFIG_RESOURCES, 1, resource_types=[Resource.TOPIC, 7])
    assert answer.error_code == errors.UnsupportedVersion.code
    assert answer.config_resources == []


def test_list_config_resources_without_permission_is_refused(broker):
    broker.node.authorizer = Denying(AclOperation.DESCRIBE_CONFIGS)
    answer = broker.request(LIST_CONFIG_RESOURCES, 1, resource_types=[])
    assert answer.error_code == errors.ClusterAuthorizationFailed.code
