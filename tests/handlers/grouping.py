"""Group requests to a node, through its dispatcher: the steps that tests share."""

from __future__ import annotations

from kafkalite import errors
from kafkalite.coordination.groups.classic.initial_rebalance import STATIC_GATHER_MS
from kafkalite.protocol.schemas.configs import INCREMENTAL_ALTER_CONFIGS
from kafkalite.protocol.schemas.groups import (
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SYNC_GROUP,
)

SESSION_MS = 10_000


def find(broker, version=3, key="g", key_type=0):
    if version >= 4:
        return broker.request(FIND_COORDINATOR, version, key_type=key_type, coordinator_keys=[key])
    return broker.request(FIND_COORDINATOR, version, key=key, key_type=key_type)


def joining(**fields):
    return {
        "group_id": "g",
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": SESSION_MS,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"m"}],
        **fields,
    }


def join(broker, version=9, **fields):
    """Join a group; versions that require a member id first join a second time with it."""
    wire = broker.send(JOIN_GROUP, version, **joining(**fields))
    if "group_instance_id" in fields:
        pass_time(broker, STATIC_GATHER_MS)
    broker.until(lambda: wire.sent is not None or wire.closed)
    answer = broker.response(wire, JOIN_GROUP, version)
    if answer.error_code == errors.MemberIdRequired.code:
        answer = broker.request(
            JOIN_GROUP, version, **joining(**fields, member_id=answer.member_id)
        )
    return answer


def member(broker, **fields):
    """Make a group of one member, stable with the assignment that it sent itself."""
    joined = join(broker, **fields)
    assert joined.error_code == 0
    synced = broker.request(
        SYNC_GROUP, 5, group_id="g", generation_id=joined.generation_id,
        member_id=joined.member_id, protocol_type="consumer", protocol_name="range",
        assignments=[{"member_id": joined.member_id, "assignment": b"a"}],
    )  # fmt: skip
    assert (synced.error_code, synced.assignment) == (0, b"a")
    return joined


def pass_time(broker, ms):
    """Advance the clock while the node runs."""
    for passed in range(0, ms, 100):
        broker.clock.advance(min(100, ms - passed))
        broker.reactor.tick(0)


def beat(broker, joined):
    return broker.request(
        HEARTBEAT, 4, group_id="g", generation_id=joined.generation_id, member_id=joined.member_id
    ).error_code


def commit(broker, version=9, offset=5, index=0, joined=None, **fields):
    part = {"partition_index": index, "committed_offset": offset, "committed_metadata": "why"}
    if version >= 6:
        part["committed_leader_epoch"] = 3
    topic = {"partitions": [part]}
    topic |= {"topic_id": broker.topic_id} if version >= 10 else {"name": "t"}
    topic |= fields.pop("topic", {})
    answer = broker.request(
        OFFSET_COMMIT, version, group_id=fields.pop("group_id", "g"), topics=[topic],
        generation_id_or_member_epoch=joined.generation_id if joined else -1,
        member_id=joined.member_id if joined else "", **fields,
    )  # fmt: skip
    return answer.topics[0].partitions[0].error_code


def fetch(broker, version=8, topics=(("t", [0]),)):
    """Return (offset, leader epoch, metadata, error) of each partition, by topic and index."""
    if version >= 10:
        wanted = [{"topic_id": name, "partition_indexes": parts} for name, parts in topics or ()]
    else:
        wanted = [{"name": name, "partition_indexes": parts} for name, parts in topics or ()]
    asked = None if topics is None else wanted
    if version >= 8:
        answer = broker.request(
            OFFSET_FETCH, version, groups=[{"group_id": "g", "topics": asked}]
        ).groups[0]
    else:
        answer = broker.request(OFFSET_FETCH, version, group_id="g", topics=asked)
    assert getattr(answer, "error_code", 0) == 0
    return {
        (topic.topic_id if version >= 10 else topic.name, part.partition_index): (
            part.committed_offset,
            part.committed_leader_epoch,
            part.metadata,
            part.error_code,
        )
        for topic in answer.topics
        for part in topic.partitions
    }


def set_for_all(broker, **fields):
    configs = [
        {"name": name.replace("_", "."), "config_operation": 0, "value": value}
        for name, value in fields.items()
    ]
    (altered,) = broker.request(
        INCREMENTAL_ALTER_CONFIGS, 1,
        resources=[{"resource_type": 4, "resource_name": "", "configs": configs}],
    ).responses  # fmt: skip
    assert altered.error_code == 0, altered.error_message
