"""kafkalite topic and kafka-topics.sh, for topics with several replicas."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from kafkalite.cli import topic_replicas
from kafkalite.cli.shell_tools.topics import partition_line
from kafkalite.cli.topic import page
from kafkalite.cli.topic_replicas import (
    ONE_HOST,
    EligibleReplicas,
    are_on_one_host,
    eligible_replicas,
    with_minimum,
)
from kafkalite.errors import Refusal
from kafkalite.protocol.schemas.cluster import DESCRIBE_TOPIC_PARTITIONS
from kafkalite.testing import Broker


@pytest.mark.parametrize(
    ("given", "factor", "configs"),
    [
        ([], -1, {}),
        ([], 2, {}),
        ([], 3, {"min.insync.replicas": "2"}),
        ([("retention.ms", "1")], 5, {"retention.ms": "1", "min.insync.replicas": "2"}),
        ([("min.insync.replicas", "1")], 3, {"min.insync.replicas": "1"}),
    ],
)
def test_new_topic_with_three_replicas_gets_a_minimum(given, factor, configs):
    assert with_minimum(given, factor) == configs


def hosts(*names):
    return [SimpleNamespace(host=name) for name in names]


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [
        ([], False),
        ([hosts("a")], False),
        ([hosts("a", "b"), hosts("b", "a")], False),
        ([hosts("a", "b"), hosts("a", "a")], True),
    ],
)
def test_replicas_of_a_partition_on_one_host_are_found(partitions, expected):
    assert are_on_one_host(partitions) is expected


class PagedWire:
    """A broker that returns one partition in each response."""

    ELR = (((), ()), ((3,), ()), ((), (2,)))

    def __init__(self, cluster):
        self.cluster = cluster

    def request(self, api, request):
        at = request["cursor"]["partition_index"] if request["cursor"] else 0
        elr, last_known = self.ELR[at]
        more = at + 1 < len(self.ELR)
        body = {
            "topics": [{
                "name": "r",
                "partitions": [{
                    "partition_index": at, "leader_id": 1, "replica_nodes": [1], "isr_nodes": [1],
                    "eligible_leader_replicas": elr, "last_known_elr": last_known,
                }],
            }],
            "next_cursor": {"topic_name": "r", "partition_index": at + 1} if more else None,
        }  # fmt: skip
        return api.response.read(0, api.response.write(0, body))


def test_eligible_replicas_of_all_pages_are_found(monkeypatch):
    monkeypatch.setattr(topic_replicas, "WireClient", PagedWire)
    assert eligible_replicas(None, ["r"]) == {
        ("r", 0): EligibleReplicas((), ()),
        ("r", 1): EligibleReplicas((3,), ()),
        ("r", 2): EligibleReplicas((), (2,)),
    }
    assert eligible_replicas(None, []) == {}


def test_eligible_replicas_are_unknown_if_the_broker_refuses(monkeypatch):
    def refuse(self, api, request):
        assert api is DESCRIBE_TOPIC_PARTITIONS
        raise Refusal("the broker does not support this request")

    monkeypatch.setattr(PagedWire, "request", refuse)
    monkeypatch.setattr(topic_replicas, "WireClient", PagedWire)
    assert eligible_replicas(None, ["r"]) == {}


def described(*replicas, elr, on_one_host=True):
    return {
        "name": "r", "topic_id": "id", "configs": {"min.insync.replicas": "2"},
        "on_one_host": on_one_host,
        "partitions": [{
            "partition": 0, "leader": replicas[0], "replicas": [*replicas], "isr": [replicas[0]],
            "elr": elr, "start_offset": 0, "end_offset": 7,
        }],
    }  # fmt: skip


def test_page_of_a_topic_shows_leader_replicas_isr_and_elr():
    *_, heads, row, note = page(described(1, 2, 3, elr=[3])).splitlines()
    assert heads.split() == ["PARTITION", "LEADER", "REPLICAS", "ISR", "ELR", "START", "END"]
    assert row.split() == ["0", "1", "1,2,3", "1", "3", "0", "7"]
    assert note == ONE_HOST
    (row,) = page(described(1, 2, elr=None, on_one_host=False)).splitlines()[-1:]
    assert row.split() == ["0", "1", "1,2", "1", "unknown", "0", "7"]
    (row,) = page(described(1, 2, elr=[], on_one_host=False)).splitlines()[-1:]
    assert row.split()[4] == "-"


def test_page_of_a_topic_with_one_replica_has_no_column_for_elr():
    heads, row = page(described(1, elr=[], on_one_host=False)).splitlines()[-2:]
    assert "ELR" not in heads.split()
    assert row.split() == ["0", "1", "1", "1", "0", "7"]


def test_kafka_topics_prints_eligible_replicas():
    nodes = [SimpleNamespace(id=n) for n in (1, 2, 3)]
    partition = SimpleNamespace(id=0, leader=nodes[0], replicas=nodes, isr=nodes[:1])
    known = partition_line("r", partition, 2, EligibleReplicas((3,), (2,)))
    assert known.endswith("\tReplicas: 1,2,3\tIsr: 1\tElr: 3\tLastKnownElr: 2")
    assert partition_line("r", partition, 2, None).endswith("\tElr: N/A\tLastKnownElr: N/A")


@pytest.fixture(scope="module")
def workers():
    with Broker(workers=3) as broker:
        yield broker


def test_topic_with_replicas_is_created_and_described(run_command, workers, monkeypatch):
    monkeypatch.setenv("KAFKALITE_BOOTSTRAP", workers.bootstrap)
    created = run_command("topic", "create", "replicated", "-p", "3", "--replicas", "3")
    assert (created.code, created.out) == (0, "replicated created\n"), created.err
    assert created.err == f"{ONE_HOST}\n"
    (topic,) = run_command("topic", "describe", "replicated", "--json").json
    assert topic["on_one_host"] is True
    assert topic["configs"] == {"min.insync.replicas": "2"}
    for partition in topic["partitions"]:
        assert sorted(partition["replicas"]) == [1, 2, 3]
        assert partition["elr"] is not None
    page = run_command("topic", "describe", "replicated").out
    assert ONE_HOST in page and "ELR" in page
    (listed,) = json.loads(run_command("topic", "list", "replicated", "--json").out)
    assert listed["replication_factor"] == 3


def test_topic_with_one_replica_is_created_without_a_note(run_command, kafka_broker):
    created = run_command("topic", "create", "alone", "-r", "1")
    assert (created.code, created.err) == (0, "")
