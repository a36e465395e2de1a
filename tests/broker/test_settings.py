"""Settings changed in a running cluster: decided at node 0, applied at every node they are for."""

from __future__ import annotations

import os

import pytest

from kafkalite import errors
from kafkalite.broker.node_settings import effective_settings, placement_limits
from kafkalite.config.broker import FETCH_MAX_BYTES, WORKER_DEDICATED_MAX, WORKERS_MAX
from kafkalite.config.resources import Resource
from kafkalite.config.settings import Settings
from kafkalite.config.topic import MAX_MESSAGE_BYTES, SEGMENT_BYTES
from kafkalite.coordination.image import ClusterImage, config_records
from kafkalite.protocol.schemas.configs import DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS
from tests.handlers.conftest import InProcess

TOPIC, BROKER = Resource.TOPIC, Resource.BROKER


def begin_alter(cluster, node_id, kind, name, **texts):
    changes = [
        {"name": key.replace("_", "."), "value": text, "config_operation": 0 if text else 1}
        for key, text in texts.items()
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": changes}
    return cluster.send(node_id, INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource])


def alter(cluster, node_id, kind, name, **texts):
    """Have a node set or delete keys of a resource; return the error code."""
    pending = begin_alter(cluster, node_id, kind, name, **texts)
    cluster.until(lambda: pending.is_done)
    (answer,) = pending.response.responses
    return answer.error_code


def value_and_source(cluster, node_id, kind, name, key):
    """Return a key's value and source as described by a node."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": [key]}
    (result,) = cluster.request(node_id, DESCRIBE_CONFIGS, 4, resources=[resource]).results
    assert result.error_code == 0, result.error_message
    (entry,) = result.configs
    return entry.value, entry.config_source


def fetch_max(cluster):
    return [cluster.node(n).settings[FETCH_MAX_BYTES] for n in sorted(cluster.running)]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_default_config_altered_at_any_node_applies_to_all_nodes(cluster, at):
    assert alter(cluster, at, BROKER, "", fetch_max_bytes="2000") == 0
    assert fetch_max(cluster) == [2000, 2000, 2000]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_config_of_one_node_applies_only_there(cluster, at):
    assert alter(cluster, at, BROKER, "2", fetch_max_bytes="2000") == 0
    assert fetch_max(cluster) == [55 << 20, 55 << 20, 2000]
    assert value_and_source(cluster, 2, BROKER, "2", "fetch.max.bytes") == ("2000", 2)
    assert value_and_source(cluster, 1, BROKER, "1", "fetch.max.bytes") == (str(55 << 20), 5)


def test_topic_config_applies_to_the_logs_of_all_leaders(cluster):
    cluster.create("a", 4)
    logs = [cluster.node(n).replicas.leader("a", i).log for i, n in enumerate((1, 2, 1, 2))]
    assert alter(cluster, 1, TOPIC, "a", max_message_bytes="100") == 0
    assert [log.config.settings[MAX_MESSAGE_BYTES] for log in logs] == [100] * 4
    answer = cluster.produce("a", b"x" * 200)
    assert answer.error_code == errors.MessageTooLarge.code
    assert alter(cluster, 2, TOPIC, "a", max_message_bytes=None) == 0
    assert cluster.produce("a", b"x" * 200).error_code == 0


def test_default_config_applies_to_topics_without_an_own_value(cluster):
    cluster.create("a", 2)
    cluster.create("b", 2, segment_bytes=str(2 << 20))
    assert alter(cluster, 0, BROKER, "", log_segment_bytes=str(3 << 20)) == 0
    sizes = {
        (p.topic, p.index): p.log.config.settings[SEGMENT_BYTES]
        for n in (1, 2)
        for p in cluster.node(n).replicas
    }
    assert sizes == {("a", 0): 3 << 20, ("a", 1): 3 << 20, ("b", 0): 2 << 20, ("b", 1): 2 << 20}


def test_topic_default_of_node_0_applies_to_all_nodes(cluster):
    cluster.create("a", 2)
    logs = [cluster.node(n).replicas.leader("a", n - 1).log for n in (1, 2)]
    assert alter(cluster, 0, BROKER, "", message_max_bytes="200") == 0
    assert alter(cluster, 1, BROKER, "0", message_max_bytes="100") == 0
    assert [log.config.settings[MAX_MESSAGE_BYTES] for log in logs] == [100, 100]
    assert value_and_source(cluster, 0, BROKER, "0", "message.max.bytes") == ("100", 2)
    assert value_and_source(cluster, 1, BROKER, "1", "message.max.bytes") == ("100", 3)
    assert value_and_source(cluster, 2, TOPIC, "a", "max.message.bytes") == ("100", 3)
    assert alter(cluster, 1, BROKER, "2", message_max_bytes="50") == errors.InvalidRequest.code
    assert alter(cluster, 1, BROKER, "0", message_max_bytes=None) == 0
    assert [log.config.settings[MAX_MESSAGE_BYTES] for log in logs] == [200, 200]


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("workers", [2, 3])
def test_altered_configs_survive_a_restart(cluster, workers, killed):
    cluster.create("a")
    assert alter(cluster, 1, BROKER, "", fetch_max_bytes="2000") == 0
    assert alter(cluster, 1, BROKER, "0", fetch_max_bytes="1500") == 0
    assert alter(cluster, 1, BROKER, "2", fetch_max_bytes="3000") == 0
    assert alter(cluster, 1, TOPIC, "a", segment_bytes=str(2 << 20)) == 0
    cluster.restart(workers, killed=killed)
    assert fetch_max(cluster) == [1500, 2000, 3000, 2000][: workers + 1]
    log = cluster.node(cluster.leader("a")).replicas.leader("a", 0).log
    assert log.config.settings[SEGMENT_BYTES] == 2 << 20


def test_altered_configs_survive_a_change_to_one_process_and_back(cluster):
    cluster.create("a")
    assert alter(cluster, 1, BROKER, "", fetch_max_bytes="2000") == 0
    assert alter(cluster, 2, TOPIC, "a", segment_bytes=str(2 << 20)) == 0
    cluster.end()
    cluster.locked.close()
    alone = InProcess(cluster.directory)
    assert alone.node.settings[FETCH_MAX_BYTES] == 2000
    assert alone.node.replicas.leader("a", 0).log.config.settings[SEGMENT_BYTES] == 2 << 20
    changes = [{"name": "fetch.max.bytes", "value": "3000"}]
    resource = {"resource_type": BROKER, "resource_name": "", "configs": changes}
    alone.request(INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource])
    alone.close()
    cluster.locked.lock()
    cluster.begin(2)
    assert fetch_max(cluster) == [3000, 3000, 3000]


def test_config_of_a_removed_node_is_removed(cluster):
    assert alter(cluster, 1, BROKER, "2", fetch_max_bytes="3000") == 0
    cluster.restart(1)
    cluster.restart(2)
    assert fetch_max(cluster) == [55 << 20] * 3


def test_worker_starts_with_configs_altered_while_it_was_down(cluster):
    cluster.kill(2, stay_down=True)
    pending = begin_alter(cluster, 1, BROKER, "", fetch_max_bytes="2000")
    cluster.until(lambda: pending.is_done)
    cluster.held_down.clear()
    cluster.settle()
    assert fetch_max(cluster) == [2000, 2000, 2000]


def test_worker_reads_missed_configs_from_the_metadata_log(cluster):
    cluster.disconnect(2)
    assert alter(cluster, 1, BROKER, "", fetch_max_bytes="2000") == 0
    cluster.settle()
    assert fetch_max(cluster) == [2000, 2000, 2000]


def test_configs_without_supervisor_are_described_and_altered_later(cluster):
    assert alter(cluster, 1, BROKER, "", fetch_max_bytes="2000") == 0
    cluster.kill(0, stay_down=True)
    assert value_and_source(cluster, 1, BROKER, "1", "fetch.max.bytes") == ("2000", 3)
    pending = begin_alter(cluster, 1, BROKER, "", fetch_max_bytes="3000")
    cluster.steps(20)
    assert not pending.is_done
    cluster.held_down.clear()
    cluster.until(lambda: pending.is_done)
    assert pending.response.responses[0].error_code == 0
    cluster.settle()
    assert fetch_max(cluster) == [3000, 3000, 3000]


def test_describe_configs_of_another_node_is_refused(cluster):
    resource = {"resource_type": BROKER, "resource_name": "2", "configuration_keys": None}
    (result,) = cluster.request(1, DESCRIBE_CONFIGS, 4, resources=[resource]).results
    assert result.error_code == errors.InvalidRequest.code
    assert value_and_source(cluster, 2, BROKER, "2", "node.id")[0] == "2"
    port = cluster.listeners[2].getsockname()[1]
    assert (
        value_and_source(cluster, 2, BROKER, "2", "listeners")[0] == f"PLAINTEXT://127.0.0.1:{port}"
    )


def test_altered_worker_dedicated_max_applies_now_and_after_a_restart(begun):
    cluster = begun(2, **{"worker.dedicated.max": "0"})
    refused = cluster.begin_create(1, "a", worker_dedicated="true")
    cluster.until(lambda: refused.is_done)
    assert refused.response.topics[0].error_code == errors.PolicyViolation.code
    assert alter(cluster, 1, BROKER, "", worker_dedicated_max="1") == 0
    assert cluster.node(0).settings[WORKER_DEDICATED_MAX] == 1
    cluster.create("a", worker_dedicated="true")
    cluster.end()
    cluster.locked.close()
    alone = InProcess(cluster.directory)  # there the topic shares the only node
    alone.close()
    cluster.locked.lock()
    cluster.begin(2)
    assert cluster.image.nodes[cluster.leader("a")].dedicated


def test_changed_leading_workers_apply_to_the_next_topic(begun):
    cluster = begun(3, **{"workers.leading": "1"})
    cluster.create("a", partitions=3)
    assert alter(cluster, 1, BROKER, "", workers_leading="2") == 0
    cluster.create("b", partitions=4)
    topics = cluster.image.topics
    assert {partition.leader for partition in topics["a"].partitions.values()} == {1}
    assert [partition.leader for partition in topics["b"].partitions.values()] == [2, 1, 2, 1]


@pytest.mark.parametrize(
    ("cores", "asked", "leading_max"),
    [
        (1, {}, 1),
        (2, {}, 1),
        (3, {}, 1),
        (8, {}, 4),
        (2, {"workers": "3"}, WORKERS_MAX),
        (2, {"workers": "3", "workers.leading": "2"}, 2),
        (2, {"workers.leading": "3"}, 3),
    ],
)
def test_leading_workers_follow_the_cores_unless_workers_are_set(
    monkeypatch, cores, asked, leading_max
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    assert placement_limits(Settings.broker(asked)).leading_max == leading_max


def test_unknown_or_invalid_stored_configs_are_skipped(caplog):
    image = ClusterImage()
    texts = {"of.tomorrow": "1", "fetch.max.bytes": "none", "num.partitions": "3"}
    for record in config_records(BROKER, "", texts):
        image.replay(record)
    settings = effective_settings(Settings.broker(), image, 0)
    assert settings[FETCH_MAX_BYTES] == 55 << 20
    assert "of.tomorrow" in caplog.text and "fetch.max.bytes" in caplog.text
