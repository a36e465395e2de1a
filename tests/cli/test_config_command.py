"""kafkalite config get, set, unset and list, against a broker."""

from __future__ import annotations

import pytest

from tests.cli.conftest import RunCommand

REFUSED = [
    (["get", "topic", "nobody"], 1, "topic nobody: "),
    (["get", "topic"], 2, "specify the topic"),
    (["get", "topic", ""], 2, "specify the topic"),
    (["get", "topic", "a\nb"], 2, "specify the topic"),
    (["get", "topic", "\udcff"], 2, "is not valid UTF-8"),
    (["set", "cluster", "log.retention.ms=\udcff"], 2, "is not valid UTF-8"),
    (["get", "broker"], 2, "invalid choice: 'broker'"),
    (["get", "node", "9"], 1, "node 9 does not exist; the nodes are 0"),
    (["get", "node", "zero"], 1, "node zero does not exist"),
    (["get", "node", "0", "log.retentoin.ms"], 1, "node 0 has no key log.retentoin.ms; did you"),
    (["get", "node", "0", "zz*"], 1, "node 0 has no key zz*"),
    (["set", "cluster"], 2, "specify what to set on cluster: KEY=VALUE"),
    (["set", "cluster", "x"], 2, "'x' is not of the form KEY=VALUE"),
    (["set", "cluster", "=x"], 2, "'=x' is not of the form KEY=VALUE"),
    (["set", "cluster", "log.retentoin.ms=1"], 1, "did you mean log.retention.ms"),
    (["set", "cluster", "log.retention.check.interval.ms=soon"], 1, "not 'soon'"),
    (["set", "node", "0", "listeners=x"], 1, "listeners is decided when the broker starts"),
    (["set", "node", "9", "max.connections=9"], 1, "node 9 does not exist"),
    (["set", "topic", "nobody", "retention.ms=1"], 1, "topic nobody: "),
    (["unset", "cluster"], 2, "specify the keys to unset on cluster"),
]


@pytest.mark.parametrize(("words", "code", "sentence"), REFUSED, ids=lambda v: str(v)[:60])
def test_invalid_config_command_is_one_line(run_command: RunCommand, words, code, sentence):
    result = run_command("config", *words)
    assert (result.code, result.out) == (code, "")
    assert sentence in result.err
    assert result.err.count("\n") == 1
    assert result.err.count("did you mean") <= 1


def test_topic_config_is_shown_with_source_until_unset(run_command, kafka_topic):
    result = run_command(
        "config", "set", "topic", kafka_topic, "retention.ms=60000", "segment.ms=5000"
    )
    assert result.out == (
        f"topic {kafka_topic}: retention.ms=60000\ntopic {kafka_topic}: segment.ms=5000\n"
    )
    assert run_command(
        "config", "get", "topic", kafka_topic, "retention.ms", "segment.ms"
    ).table == [
        ["KEY", "VALUE", "SOURCE"],
        ["retention.ms", "60000", "topic"],
        ["segment.ms", "5000", "topic"],
    ]
    shown = run_command("config", "get", "topic", kafka_topic).table
    assert ["retention.ms", "60000", "topic"] in shown
    assert not any(source == "default" for _, _, source in shown)
    result = run_command("config", "unset", "topic", kafka_topic, "retention.ms")
    assert result.out == f"topic {kafka_topic}: retention.ms unset\n"
    (entry,) = run_command("config", "get", "topic", kafka_topic, "retention.ms", "--json").json[
        "configs"
    ]
    assert (entry["value"], entry["source"]) == ("604800000", "default")


def test_verbose_config_shows_synonyms_and_documentation(run_command, kafka_topic):
    run_command("config", "set", "topic", kafka_topic, "retention.ms=60000")
    page = run_command("config", "get", "topic", kafka_topic, "retention.ms", "-v").out.splitlines()
    assert page[0] == "retention.ms = 60000  (topic)"
    assert page[1] == "    topic    retention.ms = 60000"
    assert "segment" in page[-1] or "segment" in page[-2]
    response = run_command(
        "config", "get", "topic", kafka_topic, "retention.*", "-v", "--json"
    ).json
    assert (response["kind"], response["name"]) == ("topic", kafka_topic)
    assert [entry["key"] for entry in response["configs"]] == ["retention.bytes", "retention.ms"]
    entry = response["configs"][1]
    assert entry["synonyms"][0] == {"key": "retention.ms", "value": "60000", "source": "topic"}
    assert entry["type"] == "long"
    assert entry["doc"]


def test_dry_run_of_config_set_changes_nothing(run_command, kafka_topic):
    words = ("topic", kafka_topic, "retention.ms=60000")
    result = run_command("config", "set", *words, "--dry-run")
    assert result.out == f"topic {kafka_topic}: retention.ms=60000 (not set: --dry-run)\n"
    assert run_command("config", "set", *words, "--dry-run", "--json").json == {
        "kind": "topic",
        "name": kafka_topic,
        "changes": [{"key": "retention.ms", "operation": "set", "value": "60000"}],
        "dry_run": True,
    }
    (entry,) = run_command("config", "get", "topic", kafka_topic, "retention.ms", "--json").json[
        "configs"
    ]
    assert entry["source"] == "default"
    wrong = run_command("config", "set", "topic", kafka_topic, "retention.ms=soon", "--dry-run")
    assert (wrong.code, wrong.out) == (1, "")


def test_one_invalid_key_changes_no_key(run_command, kafka_topic):
    result = run_command(
        "config", "set", "topic", kafka_topic, "retention.ms=60000", "segment.ms=soon"
    )
    assert result.code == 1
    (entry,) = run_command("config", "get", "topic", kafka_topic, "retention.ms", "--json").json[
        "configs"
    ]
    assert entry["source"] == "default"


def test_cluster_config_applies_to_node_without_own_value(run_command):
    key = "log.retention.check.interval.ms"

    def at_node():
        (entry,) = run_command("config", "get", "node", "0", key, "--json").json["configs"]
        return entry["value"], entry["source"]

    default = at_node()
    try:
        assert run_command("config", "set", "cluster", f"{key}=200000").code == 0
        assert run_command("config", "get", "cluster").table[1:] == [[key, "200000", "cluster"]]
        assert at_node() == ("200000", "cluster")
        assert run_command("config", "set", "node", "0", f"{key}=150000").code == 0
        assert at_node() == ("150000", "node")
    finally:
        run_command("config", "unset", "node", "0", key)
        run_command("config", "unset", "cluster", key)
    assert at_node() == default
    result = run_command("config", "get", "cluster")
    assert result.table == [["KEY", "VALUE", "SOURCE"]]
    assert result.err == "no values are set on cluster\n"


def test_client_metrics_subscriptions_are_set_listed_and_unset(run_command):
    words = ("client-metrics", "slow")
    assert run_command("config", "set", *words, "interval.ms=5000").code == 0
    assert run_command("config", "list", "client-metrics").table == [["KIND", "NAME"], [*words]]
    assert run_command("config", "get", *words).table[1:] == [
        ["interval.ms", "5000", "client-metrics"]
    ]
    assert run_command("config", "unset", *words, "interval.ms").code == 0
    assert run_command("config", "list", "client-metrics", "--json").json == []


def test_logger_level_is_set_and_unset(run_command):
    assert run_command("config", "set", "logger", "0", "kafkalite.broker=DEBUG").code == 0
    found = run_command("config", "get", "logger", "0", "kafkalite.broker").table
    assert found[1] == ["kafkalite.broker", "DEBUG", "logger"]
    assert run_command("config", "unset", "logger", "0", "kafkalite.broker").code == 0


def test_config_list_shows_topics_and_nodes(run_command, kafka_topic):
    assert ["topic", kafka_topic] in run_command("config", "list").table
    assert run_command("config", "list", "node").table == [["KIND", "NAME"], ["node", "0"]]
    assert run_command("config", "list", "cluster").table == [["KIND", "NAME"], ["cluster"]]


def test_config_keys_accepts_a_connection(run_command):
    with_connection = run_command(
        "config", "keys", "retention.ms", "-b", "127.0.0.1:1", "-X", "a=b"
    )
    assert (with_connection.code, with_connection.err) == (0, "")
    assert with_connection.out == run_command("config", "keys", "retention.ms").out
