"""Abuse of groups: Kafka's error codes, no growth of memory, and other groups that continue.

Each test abuses the one broker of the module; then an honest group of one member joins, gets its
assignment, commits, fetches the offset and leaves.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from kafkalite import errors
from kafkalite.coordination.topic_names import CONSUMER_OFFSETS
from kafkalite.protocol.schemas.groups import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    SYNC_GROUP,
)
from kafkalite.protocol.schemas.offsets import DELETE_RECORDS
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.records.batch import Record, build
from kafkalite.testing import Broker
from tests.fuzz.healthy import Connection
from tests.fuzz.sockets import processes, resident
from tests.process.waiting import until

MIB = 1 << 20
TOPIC = "kept"
WITHOUT_IDS = 3
"""The last version of JoinGroup that accepts a member without an id."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        started.topic(name=TOPIC)
        with connected(started) as asking:
            asking.ask(FIND_COORDINATOR, 4, {"coordinator_keys": ["honest"]})
            honest(asking)
        yield started


@contextmanager
def connected(broker: Broker) -> Iterator[Connection]:
    connection = Connection(broker.bootstrap)
    try:
        yield connection
    finally:
        connection.close()


@pytest.fixture
def asking(broker: Broker) -> Iterator[Connection]:
    """A connection; after the test the broker must be unharmed, and serve an honest group."""
    pids = processes(broker.pid)
    with connected(broker) as connection:
        yield connection
    with connected(broker) as connection:
        honest(connection)
    assert processes(broker.pid) == pids
    assert "Traceback" not in (broker.data / "kafkalite.log").read_text()


@contextmanager
def growing(broker: Broker, mib_max: int) -> Iterator[None]:
    pids = processes(broker.pid)
    before = resident(pids)
    yield
    assert resident(pids) - before < mib_max * MIB


def join(asking: Connection, group: str = "g", version: int = WITHOUT_IDS, **fields):
    return asking.ask(JOIN_GROUP, version, joining(group, **fields))


def joining(group: str, metadata: bytes = b"", **fields):
    return {
        "group_id": group,
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": metadata}],
        **fields,
    }


def sync(asking: Connection, joined, group: str = "g"):
    given = [{"member_id": joined.member_id, "assignment": b"a"}]
    who = {"generation_id": joined.generation_id, "member_id": joined.member_id}
    return asking.ask(SYNC_GROUP, 3, {"group_id": group, **who, "assignments": given}).error_code


def member(asking: Connection, group: str = "g", **fields):
    """Join as the only member of a group, and sync."""
    joined = join(asking, group, **fields)
    assert joined.error_code == 0
    assert sync(asking, joined, group) == 0
    return joined


def beat(asking: Connection, group: str, generation: int, member_id: str) -> int:
    who = {"group_id": group, "generation_id": generation, "member_id": member_id}
    return asking.ask(HEARTBEAT, 3, who).error_code


def commit(asking: Connection, group: str, generation: int, member_id: str) -> int:
    part = {"partition_index": 0, "committed_offset": 7}
    who = {"generation_id_or_member_epoch": generation, "member_id": member_id}
    topics = [{"name": TOPIC, "partitions": [part]}]
    answer = asking.ask(OFFSET_COMMIT, 8, {"group_id": group, **who, "topics": topics})
    return answer.topics[0].partitions[0].error_code


def leave(asking: Connection, group: str, member_id: str) -> int:
    members = [{"member_id": member_id}]
    answer = asking.ask(LEAVE_GROUP, 4, {"group_id": group, "members": members})
    return answer.error_code or answer.members[0].error_code


def described(asking: Connection, group: str):
    return asking.ask(DESCRIBE_GROUPS, 4, {"groups": [group]}).groups[0]


def delete(asking: Connection, *groups: str) -> set[int]:
    answer = asking.ask(DELETE_GROUPS, 1, {"groups_names": list(groups)})
    return {result.error_code for result in answer.results}


def honest(asking: Connection) -> None:
    joined = member(asking, "honest")
    who = ("honest", joined.generation_id, joined.member_id)
    assert (beat(asking, *who), commit(asking, *who)) == (0, 0)
    topics = [{"name": TOPIC, "partition_indexes": [0]}]
    read = asking.ask(OFFSET_FETCH, 8, {"groups": [{"group_id": "honest", "topics": topics}]})
    assert read.groups[0].topics[0].partitions[0].committed_offset == 7
    assert leave(asking, "honest", joined.member_id) == 0
    assert delete(asking, "honest") == {0}


def refusals(asking: Connection, group: str, generation: int, member_id: str) -> set[int]:
    """Return the error codes of requests with this generation and member id."""
    who = {"generation_id": generation, "member_id": member_id}
    synced = asking.ask(SYNC_GROUP, 3, {"group_id": group, **who, "assignments": []}).error_code
    return {
        beat(asking, group, generation, member_id),
        commit(asking, group, generation, member_id),
        synced,
    }


# Zombies and unknown members.


def test_zombie_of_an_older_generation_is_fenced(asking):
    first = member(asking, "zombies")
    again = join(asking, "zombies", member_id=first.member_id, metadata=b"other")
    assert again.generation_id > first.generation_id
    assert sync(asking, again, "zombies") == 0
    stale = {errors.IllegalGeneration.code}
    assert refusals(asking, "zombies", first.generation_id, first.member_id) == stale
    assert refusals(asking, "zombies", again.generation_id + 1, first.member_id) == stale
    assert beat(asking, "zombies", again.generation_id, again.member_id) == 0
    assert leave(asking, "zombies", first.member_id) == 0
    gone = {errors.UnknownMemberId.code}
    assert refusals(asking, "zombies", again.generation_id, again.member_id) == gone


def test_member_of_one_group_is_unknown_in_another(asking):
    one, other = member(asking, "one"), member(asking, "other")
    unknown = {errors.UnknownMemberId.code}
    assert refusals(asking, "one", one.generation_id, other.member_id) == unknown
    assert refusals(asking, "one", one.generation_id, "made up") == unknown
    assert join(asking, "one", member_id=other.member_id).error_code == errors.UnknownMemberId.code
    assert leave(asking, "one", other.member_id) == errors.UnknownMemberId.code
    assert commit(asking, "one", -1, "") == errors.UnknownMemberId.code
    assert beat(asking, "one", one.generation_id, one.member_id) == 0
    assert delete(asking, "one", "nobody's") == {
        errors.NonEmptyGroup.code,
        errors.GroupIdNotFound.code,
    }


def test_replaced_static_member_is_fenced(asking):
    def come():
        joined = join(asking, "static", version=5, group_instance_id="pump")
        who = {"generation_id": joined.generation_id, "member_id": joined.member_id}
        request = {"group_id": "static", "group_instance_id": "pump", **who}
        assert asking.ask(SYNC_GROUP, 3, {**request, "assignments": []}).error_code == 0
        return request

    first = come()
    second = come()
    assert asking.ask(HEARTBEAT, 3, first).error_code == errors.FencedInstanceId.code
    assert asking.ask(HEARTBEAT, 3, second).error_code == 0


def test_clients_cannot_write_group_records(broker, asking):
    forged = build([Record(key=b"\0\2\0\6honest", value=None)])
    data = [{"name": CONSUMER_OFFSETS, "partition_data": [{"index": 0, "records": forged}]}]
    request = {"acks": -1, "timeout_ms": 1_000, "topic_data": data}
    (refused,) = asking.ask(PRODUCE, 9, request).responses[0].partition_responses
    assert refused.error_code == errors.InvalidTopicException.code
    begin = [{"name": CONSUMER_OFFSETS, "partitions": [{"partition_index": 0, "offset": -1}]}]
    (refused,) = asking.ask(DELETE_RECORDS, 2, {"topics": begin}).topics[0].partitions
    assert refused.error_code == errors.InvalidTopicException.code


# Many members.


def pipelined(asking: Connection, api, version: int, requests) -> list:
    """Send many requests before reading the first response; return the responses."""
    requests = list(requests)
    answers = []
    for at in range(0, len(requests), 50):
        some = requests[at : at + 50]
        first = asking.asked + 1
        for request in some:
            asking.send(api, version, request)
        answers += [asking.answer(api, version, first + place) for place in range(len(some))]
    return answers


def test_ten_thousand_groups_are_listed(broker, asking):
    names = [f"many-{number}" for number in range(10_000)]
    with growing(broker, 100):
        came = pipelined(asking, JOIN_GROUP, WITHOUT_IDS, map(joining, names))
        assert {joined.error_code for joined in came} == {0}
        listed = asking.ask(LIST_GROUPS, 4, {"states_filter": []}).groups
        assert {group.group_id for group in listed} >= set(names)
        found = asking.ask(DESCRIBE_GROUPS, 4, {"groups": names}).groups
        assert len(found) == len(names)
    members = zip(names, came, strict=True)
    left = pipelined(
        asking,
        LEAVE_GROUP,
        4,
        ({"group_id": name, "members": [{"member_id": one.member_id}]} for name, one in members),
    )
    assert {answer.error_code for answer in left} == {0}
    listed = {group.group_id for group in asking.ask(LIST_GROUPS, 4, {}).groups}
    kept = listed & set(names)
    assert not kept or delete(asking, *kept) == {0}


def test_ten_thousand_pending_members_use_little_memory(broker, asking):
    with growing(broker, 40):
        came = pipelined(asking, JOIN_GROUP, 4, (joining("pending") for _ in range(10_000)))
        assert {answer.error_code for answer in came} == {errors.MemberIdRequired.code}
        assert len({answer.member_id for answer in came}) == 10_000
    joined = join(asking, "pending", version=4, member_id=came[-1].member_id)
    assert joined.error_code == 0


def test_joining_members_are_removed_with_their_connections(broker, asking):
    first = member(asking, "crowded")
    with growing(broker, 60), ExitStack() as crowd:
        for _ in range(30):
            waiting = crowd.enter_context(connected(broker))
            for _ in range(90):
                waiting.send(JOIN_GROUP, WITHOUT_IDS, joining("crowded"))
        # The group waits for its first member, which does not return.
        until(lambda: len(described(asking, "crowded").members) == 2_701)
        in_rebalance = errors.RebalanceInProgress.code
        assert beat(asking, "crowded", first.generation_id, first.member_id) == in_rebalance
        honest(asking)
    assert leave(asking, "crowded", first.member_id) == 0


def test_member_metadata_is_bounded_in_total(broker, asking):
    said = bytes(MIB)
    codes = set()
    with growing(broker, 200):
        for number in range(300):
            codes.add(join(asking, f"wordy-{number}", metadata=said).error_code)
    assert errors.GroupMaxSizeReached.code in codes
    assert codes <= {0, errors.GroupMaxSizeReached.code}
    for number in range(300):
        for one in described(asking, f"wordy-{number}").members:
            leave(asking, f"wordy-{number}", one.member_id)


# Very long lists.

ENTRIES = 20_000
"""Near the decoder's maximum for any of these (ext/codec/wire_bytes.pxd)."""


def test_commit_to_many_partitions_has_a_result_for_each(broker, asking):
    parts = [{"partition_index": index, "committed_offset": 1} for index in range(ENTRIES)]
    request = {"group_id": "wide", "generation_id_or_member_epoch": -1, "member_id": ""}
    with growing(broker, 200):
        for topic, code in ((TOPIC, 0), ("nowhere", errors.UnknownTopicOrPartition.code)):
            topics = [{"name": topic, "partitions": parts}]
            answer = asking.ask(OFFSET_COMMIT, 8, {**request, "topics": topics})
            codes = [part.error_code for part in answer.topics[0].partitions]
            assert (len(codes), codes[0]) == (ENTRIES, code)
            assert set(codes[1:]) == {errors.UnknownTopicOrPartition.code}
    topics = [{"name": TOPIC, "partitions": [parts[0]] * ENTRIES}]
    answer = asking.ask(OFFSET_COMMIT, 8, {**request, "topics": topics})
    assert {part.error_code for part in answer.topics[0].partitions} == {0}
    assert delete(asking, "wide") == {0}


LISTS = {
    "FindCoordinator": (FIND_COORDINATOR, 4, lambda names: {"coordinator_keys": names}),
    "OffsetFetch": (
        OFFSET_FETCH,
        8,
        lambda names: {"groups": [{"group_id": name, "topics": None} for name in names]},
    ),
    "DescribeGroups": (DESCRIBE_GROUPS, 5, lambda names: {"groups": names}),
    "DeleteGroups": (DELETE_GROUPS, 2, lambda names: {"groups_names": names}),
    "LeaveGroup": (
        LEAVE_GROUP,
        4,
        lambda names: {"group_id": "g", "members": [{"member_id": name} for name in names]},
    ),
}


@pytest.mark.parametrize("name", LISTS)
def test_long_list_uses_memory_of_its_own_size(broker, asking, name):
    api, version, request = LISTS[name]
    with growing(broker, 250):
        answer = asking.ask(api, version, request([f"nobody-{at}" for at in range(ENTRIES)]))
    entries = max((value for value in answer.values() if isinstance(value, list)), key=len)
    assert len(entries) == ENTRIES or answer.error_code


# Invalid bytes.

SUBSCRIPTIONS = [
    b"",
    b"\0",
    b"\0\3",
    b"\xff" * 50,
    struct.pack(">hi", 0, 0x7FFFFFFF),
    struct.pack(">hi", 3, -1),
    struct.pack(">hih", 1, 1, 0x7FFF) + b"t",
    struct.pack(">hih", 1, 1, 2) + b"\xff\xff" + bytes(8),
    struct.pack(">hi", 0, 100_000) + struct.pack(">h", 0) * 100_000,
    bytes(MIB),
]


@pytest.mark.parametrize("number", range(len(SUBSCRIPTIONS)))
def test_invalid_subscription_subscribes_to_nothing(asking, number):
    group = f"nonsense-{number}"
    joined = member(asking, group, metadata=SUBSCRIPTIONS[number])
    assert commit(asking, group, joined.generation_id, joined.member_id) == 0
    topics = [{"name": TOPIC, "partitions": [{"partition_index": 0}]}]
    answer = asking.ask(OFFSET_DELETE, 0, {"group_id": group, "topics": topics})
    codes = {answer.error_code, *(p.error_code for t in answer.topics for p in t.partitions)}
    assert codes <= {0, errors.GroupSubscribedToTopic.code, errors.NonEmptyGroup.code}
    assert leave(asking, group, joined.member_id) == 0
    assert delete(asking, group) == {0}
