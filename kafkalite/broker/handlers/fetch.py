"""Fetch: records out, as slices of the segment files they lie in.

Fetch   v4–v18   v7 brings sessions (KIP-227), v9 leader epochs (KIP-320), v12 diverging epochs
                 (KIP-595), v13 names topics by id (KIP-516), v16 says who leads what this node
                 does not (KIP-951)

Left out: followers (whoever claims to be one is nobody's replica, and is refused); a preferred
read replica (there is one replica); aborted transactions, until there are transactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkalite._ext import wire
from kafkalite.broker.counts import EXPECTED
from kafkalite.broker.handlers import At, Caller, Codec, endpoints, leader_of, serves
from kafkalite.broker.later import Later
from kafkalite.broker.purgatory import DelayedFetch
from kafkalite.broker.replica_manager import Fetched, FetchItem
from kafkalite.broker.security import READ, TOPIC
from kafkalite.config.broker import FETCH_MAX_BYTES
from kafkalite.errors import (
    FencedLeaderEpoch,
    KafkaError,
    NotLeaderOrFollower,
    TopicAuthorizationFailed,
)
from kafkalite.protocol.schemas.fetch import FETCH

if TYPE_CHECKING:
    from kafkalite.broker.fetch_sessions import FetchSession
    from kafkalite.broker.node import Node

TOPIC_IDS_SINCE = 13

STALE = (NotLeaderOrFollower.code, FencedLeaderEpoch.code)
ERROR_CODE, CURRENT_LEADER = 1, 8
"""Where these stand in a partition's entry (ext/wire.pyx)."""


def _encode(version: int, correlation_id: int, response: dict[str, Any]) -> list[Any]:
    return wire.encode_fetch(
        version,
        correlation_id,
        0,
        response.get("error_code", 0),
        response.get("session_id", 0),
        response.get("topics", []),
        response.get("node_endpoints", ()),
    )


@serves(FETCH, versions="4-18", at=At.LEADER, codec=Codec(wire.decode_fetch, _encode))
def fetch(node: Node, request: Any, caller: Caller) -> dict[str, Any] | Later[Any]:
    """Read every partition asked for; wait when together they hold less than `min_bytes`."""
    (replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch,
     topics, forgotten, _) = request  # fmt: skip
    try:
        session = node.fetch_sessions.enter(
            session_id, session_epoch, topics, forgotten, by_id=caller.version >= TOPIC_IDS_SINCE
        )
    except KafkaError as fault:
        return {"error_code": fault.code, "any_fault": True}
    everything = session is None or session_epoch <= 0
    items = _items(
        node, caller, topics if everything or session is None else session.topics(), replica_id
    )
    max_bytes = min(max_bytes, node.settings[FETCH_MAX_BYTES])
    # More than may be given is not worth waiting for.
    min_bytes = min(min_bytes, max_bytes)

    def respond(fetched: Fetched) -> dict[str, Any]:
        for traffic, size in fetched.sizes:
            traffic.bytes_out += size
        response = _respond(session, fetched, everything)
        if fetched.any_fault:
            response["any_fault"] = True
            _name_leaders(node, caller, response)
            _count_failures(node, response["topics"])
        return response

    fetched = node.replicas.fetch(items, max_bytes, isolation_level)
    if fetched.size >= min_bytes or fetched.any_fault or not items or max_wait_ms <= 0:
        return respond(fetched)
    delayed = DelayedFetch(node.replicas, items, min_bytes, max_bytes, isolation_level, respond)
    if delayed.ready():
        # What was read ends where an older segment does; what follows may be read at once.
        return respond(fetched)
    return node.replicas.purgatory.park(delayed, max_wait_ms)


def _items(
    node: Node, caller: Caller, topics: list[Any], replica_id: int
) -> list[FetchItem]:
    # What is named twice is read once, as it was named last: as in Kafka.
    items: dict[tuple[Any, int], FetchItem] = {}
    leader = node.replicas.leader
    for topic, partitions in topics:
        for index, leader_epoch, offset, fetched_epoch, _, size_max in partitions:
            partition, fault = None, None
            try:
                partition = leader(topic, index)
                partition.traffic.fetches += 1
                if replica_id >= 0:
                    raise NotLeaderOrFollower()
                if not caller.may(READ, TOPIC, partition.topic):
                    raise TopicAuthorizationFailed()
            except KafkaError as raised:
                # Without its frames: they hold this very list.
                partition, fault = None, raised.with_traceback(None)
            items[topic, index] = FetchItem(
                topic, index, partition, fault, leader_epoch, offset, fetched_epoch, size_max
            )
    return list(items.values())


def _respond(session: FetchSession | None, fetched: Fetched, everything: bool) -> dict[str, Any]:
    if session is None:
        return {"topics": fetched.topics}
    return {
        "session_id": session.session_id,
        "topics": session.news(fetched.topics, everything),
    }


def _count_failures(node: Node, topics: Any) -> None:
    for topic, entries in topics:
        traffic = node.replicas.traffic_of(topic)
        codes = [entry[ERROR_CODE] for entry in entries]
        traffic.failed_fetches += sum(code != 0 and code not in EXPECTED for code in codes)


def _name_leaders(node: Node, caller: Caller, response: dict[str, Any]) -> None:
    """Say who leads what this node does not, or leads it in another epoch than the client knows."""
    leaders = []
    for topic, entries in response["topics"]:
        for position, entry in enumerate(entries):
            if entry[ERROR_CODE] in STALE:
                leader = leader_of(node, topic, entry[0])
                leaders.append(leader)
                entries[position] = (
                    *entry[:CURRENT_LEADER], leader, *entry[CURRENT_LEADER + 1 :]
                )  # fmt: skip
    response["node_endpoints"] = endpoints(node, caller, leaders)
