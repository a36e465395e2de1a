"""Settings: precedence of values, synonyms, and refused values."""

import pytest

from kafkalite.config import broker, topic
from kafkalite.config.broker import BROKER
from kafkalite.config.key import Check, Scope, Type, UpdateMode
from kafkalite.config.replication import RACK_AWARE_SELECTOR, REPLICA_SELECTOR_CLASS
from kafkalite.config.settings import (
    ConfigSynonym,
    ConfiguredValue,
    Settings,
    Source,
    read_properties,
    value_text,
)
from kafkalite.config.topic import RETENTION_MS, SEGMENT_BYTES, TOPIC
from kafkalite.errors import InvalidConfig, Refusal


def test_settings_without_values_are_defaults():
    settings = Settings.broker()
    for key in (*BROKER.values(), *TOPIC.values()):
        assert settings[key] == key.default
        assert settings.source(key) == Source.DEFAULT


def test_dynamic_value_precedes_file_and_file_precedes_default():
    settings = Settings.broker(
        static={"num.partitions": "3", "fetch.max.bytes": "2048"}, default={"num.partitions": "4"}
    )
    assert settings[broker.NUM_PARTITIONS] == 4
    assert settings.source(broker.NUM_PARTITIONS) == Source.DYNAMIC_DEFAULT_BROKER
    assert settings[broker.FETCH_MAX_BYTES] == 2048
    assert settings.source(broker.FETCH_MAX_BYTES) == Source.STATIC_BROKER


def test_node_value_precedes_cluster_value_until_it_is_removed():
    settings = Settings.broker({"message.max.bytes": "1"}, {"message.max.bytes": "2"})
    own = settings.with_dynamic({"message.max.bytes": "2"}, {"message.max.bytes": "3"})
    for found, size in [(settings, 2), (own, 3), (own.with_dynamic({}, {}), 1)]:
        assert found.for_topic()[topic.MAX_MESSAGE_BYTES] == size
    sources = [synonym.source for synonym in own.synonyms(BROKER["message.max.bytes"])]
    assert sources == [
        Source.DYNAMIC_BROKER, Source.DYNAMIC_DEFAULT_BROKER, Source.STATIC_BROKER, Source.DEFAULT,
    ]  # fmt: skip


def test_replaced_value_survives_dynamic_update():
    settings = Settings.broker().replacing({SEGMENT_BYTES: 4096})
    assert settings.with_dynamic({"log.segment.bytes": "2097152"}, {})[SEGMENT_BYTES] == 4096


def test_synonyms_use_their_own_units_and_broker_defaults():
    settings = Settings.broker({"log.retention.hours": "2"}, {"log.retention.ms": "9"})
    own = settings.for_topic({"retention.ms": "5"})
    assert list(own.synonyms(RETENTION_MS)) == [
        ConfigSynonym("retention.ms", "5", Source.TOPIC),
        ConfigSynonym("log.retention.ms", "9", Source.DYNAMIC_DEFAULT_BROKER),
        ConfigSynonym("log.retention.hours", "2", Source.STATIC_BROKER),
        ConfigSynonym("log.retention.hours", "168", Source.DEFAULT),
    ]


@pytest.mark.parametrize("key", [*BROKER.values(), *TOPIC.values()], ids=lambda key: key.name)
def test_first_synonym_is_the_effective_default(key):
    settings = Settings.broker()
    first = next(settings.synonyms(key), None)
    assert (key.default is None) == (first is None)
    if first is None:
        return
    assert first.source is Source.DEFAULT
    (factor,) = (place.factor for place in key.names if place.name == first.name)
    value = BROKER.get(first.name, key).parse(first.text)
    assert (value if factor == 1 else value * factor) == settings[key]


def test_password_appears_in_no_output():
    scope = Scope("thing", UpdateMode.CLUSTER_WIDE)
    key = scope.declare("a.secret", Type.PASSWORD, "", "A secret.")
    settings = Settings.of(Source.GROUP, scope, {"a.secret": "hush"})
    assert settings[key] == "hush"
    assert value_text(key, "hush") is None
    assert "hush" not in str(list(settings.synonyms(key)))
    key.check = Check("longer", lambda text: False)
    with pytest.raises(InvalidConfig) as refused:
        scope.parse({"a.secret": "hush"})
    assert "hush" not in str(refused.value)


def test_topic_value_precedes_broker_value_of_any_synonym():
    settings = Settings.broker({"log.segment.bytes": "2097152", "durability": "os"})
    plain, own = settings.for_topic(), settings.for_topic({"segment.bytes": "1048576"})
    assert (plain[SEGMENT_BYTES], plain.source(SEGMENT_BYTES)) == (2 << 20, Source.STATIC_BROKER)
    assert (own[SEGMENT_BYTES], own.source(SEGMENT_BYTES)) == (1 << 20, Source.TOPIC)
    assert plain[topic.DURABILITY] == "os"
    assert settings.for_topic({"durability": "fsync"})[topic.DURABILITY] == "fsync"


def test_values_of_yields_every_value_with_effective_first():
    settings = Settings.broker({"log.segment.bytes": "2097152"})
    assert list(settings.for_topic({"segment.bytes": "1048576"}).values_of(SEGMENT_BYTES)) == [
        ConfiguredValue("segment.bytes", 1 << 20, Source.TOPIC),
        ConfiguredValue("log.segment.bytes", 2 << 20, Source.STATIC_BROKER),
        ConfiguredValue("segment.bytes", 1 << 30, Source.DEFAULT),
    ]


@pytest.mark.parametrize(
    ("set_to", "retention_ms"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.minutes": "3"}, 180_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.minutes": "3", "log.retention.ms": "5"}, 5),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_finest_unit_takes_precedence(set_to, retention_ms):
    assert Settings.broker(set_to)[RETENTION_MS] == retention_ms


@pytest.mark.parametrize("key", TOPIC.values(), ids=lambda key: key.name)
def test_topic_key_and_overridden_broker_key_have_equal_defaults(key):
    broker_defaults = {
        (default * place.factor if place.factor != 1 else default)
        for place in key.names
        if place.name in BROKER and (default := BROKER[place.name].default) is not None
    }
    assert broker_defaults <= {key.default}
    assert all(name in BROKER for name in key.overrides)


def test_unsupported_topic_values_are_rejected_with_reason():
    settings = Settings.broker()
    for name, value, reason in [
        ("cleanup.policy", "keep", "delete, compact, both, or empty"),
        ("cleanup.policy", "compact,compact", "delete, compact, both, or empty"),
        ("remote.storage.enable", "true", "tiered"),
        ("min.insync.replicas", "0", "at least 1"),
        ("segment.bytes", "1000", "at least 1048576"),
    ]:
        with pytest.raises(InvalidConfig, match=reason):
            settings.for_topic({name: value})


def test_only_supported_value_is_accepted():
    settings = Settings.broker().for_topic(
        {"cleanup.policy": "delete", "remote.storage.enable": "false"}
    )
    assert settings[topic.CLEANUP_POLICY] == ("delete",)


@pytest.mark.parametrize(
    "name",
    [
        "process.roles", "zookeeper.connect", "num.io.threads", "broker.id", "ssl.protocol",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    ],
)  # fmt: skip
def test_unsupported_kafka_key_is_rejected_with_reason(name):
    with pytest.raises(InvalidConfig, match=f"{name} is not supported: "):
        Settings.broker({name: "1"})


@pytest.mark.parametrize("name", ["", RACK_AWARE_SELECTOR])
def test_replica_selector_of_kafka_is_accepted(name):
    settings = Settings.broker({REPLICA_SELECTOR_CLASS.name: name})
    assert bool(settings[REPLICA_SELECTOR_CLASS]) is bool(name)


def test_replica_selector_of_another_class_is_rejected():
    with pytest.raises(InvalidConfig, match="replica.selector.class must be empty or org"):
        Settings.broker({REPLICA_SELECTOR_CLASS.name: "org.example.MySelector"})


def test_no_key_is_both_declared_and_left_out():
    for name in BROKER:
        assert name not in BROKER.left_out


def test_replacing_bypasses_checks():
    assert Settings.broker().replacing({SEGMENT_BYTES: 4096})[SEGMENT_BYTES] == 4096


@pytest.mark.parametrize(
    ("text", "listener"),
    [
        ("PLAINTEXT://127.0.0.1:9092", ("127.0.0.1", 9092)),
        ("plaintext://localhost:0", ("localhost", 0)),
        ("PLAINTEXT://:9092", ("", 9092)),
        ("PLAINTEXT://[::1]:9092", ("::1", 9092)),
    ],
)
def test_listener_is_parsed_as_host_and_port(text, listener):
    assert broker.parse_listener(text) == listener


@pytest.mark.parametrize(
    "text",
    ["", "9092", "localhost:9092", "SSL://h:1", "PLAINTEXT://h", "PLAINTEXT://h:70000",
     "PLAINTEXT://h:-1", "PLAINTEXT://::1:9092", "PLAINTEXT://a:1,PLAINTEXT://b:2"],
)  # fmt: skip
def test_listeners_other_than_one_plaintext_are_rejected(text):
    with pytest.raises(InvalidConfig):
        Settings.broker({"listeners": text})


@pytest.mark.parametrize(("text", "count"), [("0", 0), ("128", 128)])
def test_workers_accepts_its_bounds(text, count):
    assert Settings.broker({"workers": text})[broker.WORKERS] == count


@pytest.mark.parametrize("text", ["-1", "129", "10000"])
def test_workers_out_of_bounds_is_rejected_with_reason(text):
    words = r"workers must be between 0 and 128 \(each is a process, .* not '" + text
    with pytest.raises(InvalidConfig, match=words):
        Settings.broker({"workers": text})


def test_properties_file_is_read_as_java_does(tmp_path):
    path = tmp_path / "server.properties"
    path.write_text(
        "# a comment\n"
        "! another\n"
        "\n"
        "num.partitions=3\n"
        "  log.dirs : /data\\\n"
        "     /logs\n"
        "broker.rack=a\\u0062\\tc\n"
        "num.partitions=4\n"
        "listeners=\n"
    )
    assert read_properties(path) == {
        "num.partitions": "4",
        "log.dirs": "/data/logs",
        "broker.rack": "ab\tc",
        "listeners": "",
    }


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(b"num.partitions\n", "line 1"), (b"a=1\n=2\n", "line 2"), (b"a=\xff\n", "not UTF-8")],
)
def test_invalid_properties_file_is_rejected_with_line_or_encoding(tmp_path, content, complaint):
    path = tmp_path / "server.properties"
    path.write_bytes(content)
    with pytest.raises(Refusal, match=complaint):
        read_properties(path)


def test_missing_properties_file_is_rejected_by_name(tmp_path):
    with pytest.raises(Refusal, match=r"missing\.properties: No such file"):
        read_properties(tmp_path / "missing.properties")


def test_offsets_topic_partitions_are_bounded():
    with pytest.raises(InvalidConfig, match=r"offsets.topic.num.partitions.*between 1 and 10000"):
        Settings.broker({"offsets.topic.num.partitions": "1000000000"})
