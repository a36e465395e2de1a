"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources.

A scene restores its changes to all topics or to the node, because others share the broker.
"""

from __future__ import annotations

from kafkalite.protocol.schemas.configs import (
    ALTER_CONFIGS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_CONFIG_RESOURCES,
)
from tests.oracle.conversation import Conversation
from tests.oracle.scenes import scene

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
# Keys whose values do not depend on the size of the machine.
OF_A_NODE = (
    "advertised.listeners", "listeners", "node.id", "log.dirs", "log.retention.ms",
    "log.retention.hours", "log.segment.bytes", "message.max.bytes", "num.partitions",
    "min.insync.replicas", "compression.type", "log.cleanup.policy", "auto.create.topics.enable",
    "offsets.topic.replication.factor", "default.replication.factor", "no.such.key",
)  # fmt: skip


def described(talk, version, note, *resources, keys=None, **more):
    listed = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        for kind, name in resources
    ]
    talk.ask(DESCRIBE_CONFIGS, version, {"resources": listed, **more}, note=note)


@scene(DESCRIBE_CONFIGS)
def a_topic_tells_its_configuration(talk, version):
    plain = talk.topic()
    topic = talk.topic(retention_ms="5000", cleanup_policy="delete", max_message_bytes="2000")

    def tell(note, name=topic.name, **more):
        described(talk, version, note, (TOPIC, name), **more)

    tell("of a plain one", plain.name)
    tell("all of it")
    tell("with where it comes from", include_synonyms=True)
    if version >= 3:
        tell("with words", include_documentation=True, keys=["retention.ms", "segment.ms"])
    tell("two keys", keys=["retention.ms", "segment.bytes"])
    tell("a key twice", keys=["retention.ms", "retention.ms"])
    tell("a key nobody knows", keys=["no.such.key", "retention.ms"])
    tell("no keys", keys=[])
    tell("of an unknown topic", "never-made")
    for name in ("", "a/b", "x" * 250):
        tell(f"of {name[:9]!r}", name)
    both = [(TOPIC, topic.name), (TOPIC, topic.name)]
    described(talk, version, "twice", *both, keys=["retention.ms"])
    described(talk, version, "nothing")
    for kind in (0, 1, 3, 99, -1):
        described(talk, version, f"a thing of kind {kind}", (kind, "0"))


@scene(DESCRIBE_CONFIGS)
def a_node_tells_its_configuration(talk, version):
    def tell(note, name="0", **more):
        described(talk, version, note, (BROKER, name), **more)

    tell("what is always asked for", keys=[*OF_A_NODE])
    tell("with where it comes from", keys=[*OF_A_NODE], include_synonyms=True)
    tell("of all nodes", "")
    for name in ("7", "-1", "here", " 0", "00"):
        tell(f"of node {name!r}", name, keys=["log.retention.ms"])
    for name in ("7", "here", ""):
        described(talk, version, f"of the log of node {name!r}", (LOGGER, name))


@scene(DESCRIBE_CONFIGS, versions=(4,))
def a_node_tells_all_its_keys(talk, version):
    described(talk, version, "all of it", (BROKER, "0"), include_synonyms=True)


@scene(DESCRIBE_CONFIGS)
def what_groups_and_metrics_are_told_is_told(talk, version):
    described(talk, version, "a group", (GROUP, "never-made"), include_synonyms=True)
    described(talk, version, "a group without a name", (GROUP, ""))
    described(talk, version, "metrics", (CLIENT_METRICS, "never-made"), include_synonyms=True)
    described(talk, version, "metrics without a name", (CLIENT_METRICS, ""))


def altered(talk, version, note, name, configs, *, kind=TOPIC, **more):
    listed = [{"name": key, "value": value} for key, value in configs]
    entry = {"resource_type": kind, "resource_name": name, "configs": listed}
    talk.ask(ALTER_CONFIGS, version, {"resources": [entry], **more}, note=note)


def keys_of(talk: Conversation, name, *keys, kind=TOPIC, note="afterwards"):
    """Describe the current values; a new topic is created first, to await the change's replay."""
    talk.topic()
    described(talk, 4, note, (kind, name), keys=[*keys], include_synonyms=True)


@scene(ALTER_CONFIGS)
def a_topic_is_configured_anew(talk, version):
    topic = talk.topic(retention_ms="5000")

    def alter(note, *configs, name=topic.name, **more):
        altered(talk, version, note, name, configs, **more)

    alter("one key", ("segment.ms", "7000"))
    keys_of(talk, topic.name, "retention.ms", "segment.ms")
    alter("tried", ("retention.ms", "1"), validate_only=True)
    alter("one good, one not", ("retention.ms", "1"), ("segment.ms", "0"))
    alter("a key nobody knows", ("no.such.key", "1"))
    alter("no value", ("retention.ms", None))
    alter("an empty value", ("retention.ms", ""))
    alter("a key twice", ("retention.ms", "1"), ("retention.ms", "2"))
    alter("a key without a name", ("", "1"))
    keys_of(talk, topic.name, "retention.ms", "segment.ms")
    alter("nothing")
    keys_of(talk, topic.name, "retention.ms", "segment.ms")
    for name in ("never-made", "", "a/b"):
        alter(f"of {name!r}", ("retention.ms", "1"), name=name)
    for kind in (0, 3, 99):
        alter(f"a thing of kind {kind}", ("retention.ms", "1"), kind=kind)
    talk.ask(ALTER_CONFIGS, version, {"resources": []}, note="of nothing")


def changes(*changed):
    return [
        {"name": key, "config_operation": operation, "value": value}
        for operation, key, value in changed
    ]


@scene(INCREMENTAL_ALTER_CONFIGS)
def a_topic_is_configured_key_by_key(talk, version):
    topic = talk.topic(retention_ms="5000")

    def alter(note, *changed, name=topic.name, kind=TOPIC, **more):
        entry = {"resource_type": kind, "resource_name": name, "configs": changes(*changed)}
        asked = {"resources": [entry], **more}
        talk.ask(INCREMENTAL_ALTER_CONFIGS, version, asked, note=note)

    def look():
        keys_of(talk, topic.name, "retention.ms", "segment.ms", "cleanup.policy")

    alter("one key", (SET, "segment.ms", "7000"))
    look()
    alter("back to the default", (DELETE, "retention.ms", None))
    alter("again", (DELETE, "retention.ms", "with a value"))
    look()
    alter("tried", (SET, "retention.ms", "1"), validate_only=True)
    alter("one good, one not", (SET, "retention.ms", "1"), (SET, "segment.ms", "0"))
    alter("a key nobody knows", (SET, "no.such.key", "1"))
    alter("a key nobody knows away", (DELETE, "no.such.key", None))
    alter("no value", (SET, "retention.ms", None))
    alter("an empty value", (SET, "retention.ms", ""))
    alter("a key twice", (SET, "retention.ms", "1"), (SET, "retention.ms", "2"))
    alter("appended to what is no list", (APPEND, "retention.ms", "1"))
    alter("subtracted from what is no list", (SUBTRACT, "retention.ms", "1"))
    alter("an unknown word to a list", (APPEND, "cleanup.policy", "keep"))
    alter("a word to a list that has it", (APPEND, "cleanup.policy", "delete"))
    alter("a word from a list without it", (SUBTRACT, "cleanup.policy", "compact"))
    look()
    alter("nothing")
    for name in ("never-made", "", "a/b"):
        alter(f"of {name!r}", (SET, "retention.ms", "1"), name=name)
    for kind in (0, 3, 99):
        alter(f"a thing of kind {kind}", (SET, "retention.ms", "1"), kind=kind)
    talk.ask(INCREMENTAL_ALTER_CONFIGS, version, {"resources": []}, note="of nothing")
    entry = {"resource_type": TOPIC, "resource_name": topic.name, "configs": []}
    asked = {"resources": [{**entry, "configs": changes((SET, "segment.ms", "1"))}] * 2}
    talk.ask(INCREMENTAL_ALTER_CONFIGS, version, asked, note="a topic twice")
    look()


@scene(INCREMENTAL_ALTER_CONFIGS)
def a_node_is_configured_while_it_runs(talk, version):
    def alter(note, *changed, name="0", **more):
        entry = {"resource_type": BROKER, "resource_name": name, "configs": changes(*changed)}
        asked = {"resources": [entry], **more}
        talk.ask(INCREMENTAL_ALTER_CONFIGS, version, asked, note=note)

    def look(*keys):
        keys_of(talk, "0", *keys, kind=BROKER)
        keys_of(talk, "", *keys, kind=BROKER, note="of all nodes, afterwards")

    key = "log.retention.ms"
    alter("for all nodes", (SET, key, "777000"), name="")
    look(key)
    alter("for this one", (SET, key, "888000"))
    look(key)
    topic = talk.topic()
    keys_of(talk, topic.name, "retention.ms", note="of a topic then")
    alter("this one's away", (DELETE, key, None))
    look(key)
    alter("all nodes' away", (DELETE, key, None), name="")
    look(key)
    keys_of(talk, topic.name, "retention.ms", note="of a topic in the end")
    alter("tried", (SET, key, "1"), validate_only=True)
    alter("what cannot change", (SET, "node.id", "3"))
    alter("what cannot change, for all", (SET, "log.dirs", "elsewhere"), name="")
    alter("a key nobody knows", (SET, "no.such.key", "1"))
    alter("a word for a number", (SET, key, "soon"))
    alter("no value", (SET, key, None))
    alter("away what is not there", (DELETE, key, None))
    alter("a key nobody knows away", (DELETE, "no.such.key", None))
    for name in ("7", "here", "-1"):
        alter(f"of node {name!r}", (SET, key, "1"), name=name)
    look(key, "no.such.key")


@scene(ALTER_CONFIGS)
def a_node_is_configured_as_a_whole(talk, version):
    key = "log.retention.ms"
    # Kafka sets this one there at its first start, and does not allow its removal.
    always = ("min.insync.replicas", "1")
    altered(talk, version, "for all nodes", "", [(key, "777000"), always], kind=BROKER)
    keys_of(talk, "0", key, kind=BROKER)
    altered(talk, version, "nothing more, for all nodes", "", [always], kind=BROKER)
    altered(talk, version, "what cannot change", "0", [("node.id", "3")], kind=BROKER)
    altered(talk, version, "a word for a number", "0", [(key, "soon")], kind=BROKER)
    keys_of(talk, "0", key, kind=BROKER)


@scene(INCREMENTAL_ALTER_CONFIGS)
def metrics_and_groups_are_configured(talk, version):
    def alter(note, kind, name, *changed):
        entry = {"resource_type": kind, "resource_name": name, "configs": changes(*changed)}
        talk.ask(INCREMENTAL_ALTER_CONFIGS, version, {"resources": [entry]}, note=note)

    metrics, group = f"metrics-{version}", f"group-{version}"
    keys = ("interval.ms", "metrics", "match")
    for key, value in (
        ("interval.ms", "5000"), ("metrics", "org.apache.kafka.producer."),
        ("match", "client_software_name=oracle"), ("interval.ms", "99"), ("interval.ms", "soon"),
        ("match", "no_such_thing=oracle"), ("match", "("), ("no.such.key", "1"), ("metrics", ""),
    ):  # fmt: skip
        alter(f"metrics' {key} {value}", CLIENT_METRICS, metrics, (SET, key, value))
    keys_of(talk, metrics, *keys, kind=CLIENT_METRICS)
    talk.ask(LIST_CONFIG_RESOURCES, 0, {}, only=metrics)
    talk.ask(LIST_CONFIG_RESOURCES, 1, {}, only=metrics)
    alter("metrics without a name", CLIENT_METRICS, "", (SET, "interval.ms", "5000"))
    for key in keys:
        alter(f"metrics' {key} away", CLIENT_METRICS, metrics, (DELETE, key, None))
    keys_of(talk, metrics, *keys, kind=CLIENT_METRICS)
    for key, value in (
        ("consumer.session.timeout.ms", "50000"), ("consumer.session.timeout.ms", "1"),
        ("consumer.heartbeat.interval.ms", "6000"), ("no.such.key", "1"),
    ):  # fmt: skip
        alter(f"a group's {key} {value}", GROUP, group, (SET, key, value))
    keys_of(talk, group, "consumer.session.timeout.ms", kind=GROUP)
    talk.ask(LIST_CONFIG_RESOURCES, 1, {"resource_types": [GROUP]}, only=group)
    alter("a group without a name", GROUP, "", (SET, "consumer.session.timeout.ms", "50000"))


@scene(LIST_CONFIG_RESOURCES, versions=(1,))
def what_can_be_configured_is_listed(talk, version):
    topic = talk.topic()
    for kinds in ([TOPIC], [TOPIC, TOPIC], [CLIENT_METRICS], [0], [99], [TOPIC, 99]):
        asked = {"resource_types": kinds}
        talk.ask(LIST_CONFIG_RESOURCES, version, asked, note=f"of {kinds}", only=topic.name)
    for kinds in ([BROKER], [LOGGER]):
        asked = {"resource_types": kinds}
        talk.ask(LIST_CONFIG_RESOURCES, version, asked, note=f"of {kinds}", only="0")
    talk.ask(LIST_CONFIG_RESOURCES, version, {}, note="of every kind", only=topic.name)
