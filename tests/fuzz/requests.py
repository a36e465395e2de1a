"""Requests that a client could have sent: of every supported API and version.

Names, numbers and ids come from small sets, so that requests affect each other: the same few
topics are created, written, read and deleted, the same few groups joined.  Now and then a field has
an arbitrary value.  Valid requests that would disturb the rest of the test are not sent
(`Sparing`): thousands of partitions, and settings of the whole broker.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import kafkalite.broker.dispatch  # noqa: F401  (SERVED is whole once it is imported)
from kafkalite.broker.served_apis import SERVED, Handler
from kafkalite.errors import InvalidRequest
from kafkalite.protocol.frame import RequestHeader, read_header, write_header
from kafkalite.protocol.schema import Fields
from kafkalite.protocol.schemas.configs import ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.topics import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from kafkalite.protocol.types import Array, Bytes, Field, Records, Struct, Uuid
from kafkalite.records.batch import Record, build
from kafkalite.records.compression import Codec
from tests.protocol.values import Maker

HEALTHY = "healthy"
"""The topic of the healthy client; no request here may name it."""

TOPICS = [f"fuzz-{number}" for number in range(6)]
GROUPS = ["", *(f"group-{number}" for number in range(4))]
KNOWN = {*TOPICS, *GROUPS}
PARTITIONS_MAX = 24
FOREIGN_MAX = 40
TOPIC_RESOURCE = 2
OTHER_RESOURCES = [16, 32]
"""Client metrics and groups."""

ODD = 0.03
"""Probability of an arbitrary value of a field."""

CHOICES: dict[str, list[Any]] = {
    "acks": [-1, -1, 1, 1, 0, 2],
    "allow_auto_topic_creation": [False, False, True],
    "assignments": [[]],
    "broker_id": [0, 1],
    "cluster_id": [None],
    "committed_offset": [0, 1, 7, -1],
    "config_operation": [0, 0, 1, 2, 3],
    "coordinator_keys": GROUPS,
    "count": [1, 2, 3, 4],
    "current_leader_epoch": [-1, -1, 0, 1],
    "election_type": [0, 1],
    "fetch_offset": [0, 0, 1, 5, 1 << 40, -1],
    "generation_id": [-1, 0, 1, 2],
    "generation_id_or_member_epoch": [-1, -1, 1],
    "group_id": GROUPS,
    "group_instance_id": [None, None, "static"],
    "groups": GROUPS,
    "groups_names": GROUPS,
    "host": [""],
    "index": [0, 0, 1, 2],
    "instance_id": [None],
    "isolation_level": [0, 1],
    "key": GROUPS,
    "key_type": [0, 0, 0, 1, 2],
    "log_start_offset": [-1],
    "max_bytes": [1 << 20, 100, 0],
    "max_wait_ms": [0, 0, 0, 20],
    "member_id": ["", "", "someone"],
    "min_bytes": [0, 1, 1],
    "num_partitions": [1, 2, 3, -1],
    "offset": [0, 1, -1],
    "partition": [0, 0, 1, 2],
    "partition_index": [0, 0, 1, 2],
    "partition_indexes": [0, 0, 1, 2],
    "partition_max_bytes": [1 << 20, 100],
    "partitions": [0, 1, 2],
    "producer_epoch": [-1, 0],
    "producer_id": [-1, 0, 1],
    "protocol_type": ["consumer", "consumer", "connect", ""],
    "rebalance_timeout_ms": [50, 300],
    "replica_id": [-1],
    "replication_factor": [1, -1],
    "resource_name": [*TOPICS, "0", ""],
    "resource_type": [TOPIC_RESOURCE, TOPIC_RESOURCE, *OTHER_RESOURCES],
    "resource_types": [TOPIC_RESOURCE, *OTHER_RESOURCES],
    "response_partition_limit": [2000, 1],
    "session_epoch": [-1, 0, 1],
    "session_id": [0, 0, 1],
    "session_timeout_ms": [6_000, 10_000],
    "timeout_ms": [100],
    "timestamp": [-1, -2, 0, 1_700_000_000_000],
    "topic": TOPICS,
    "topic_name": TOPICS,
    "topic_names": TOPICS,
    "transactional_id": [None, None, None, "writer"],
}
NAMES = {
    "configs": ["retention.ms", "cleanup.policy", "segment.bytes", "metrics", "match", "nonsense"],
    "config_names": ["retention.ms", "max.message.bytes"],
    "configuration_keys": ["retention.ms", "segment.bytes"],
    "protocols": ["range", "roundrobin"],
    "topics": TOPICS,
    "topic_data": TOPICS,
}
"""Values of `name`, by the array that contains it; anywhere else it is a topic's."""

VALUES = ["1000", "compact", "delete", "client_id=fuzz.*", "-1", "", "no number", None]


def some_batches() -> list[bytes]:
    """Return batches that a client may send, and some that it may not."""
    one, three = [Record(timestamp=5, value=b"one")], [Record(value=b"v" * size) for size in (0, 9)]
    made = [build(one), build(three), build(three, codec=Codec.LZ4), build(one, codec=Codec.GZIP)]
    made += [build(one, producer_id=0, producer_epoch=0, base_sequence=at) for at in range(3)]
    made += [build(one, control=True), build(one, base_offset=7), build(three) + build(one)]
    broken = bytearray(made[2])
    broken[70] ^= 1
    return [*made, bytes(broken), b""]


BATCHES = some_batches()


class World(NamedTuple):
    """Ids that only the broker knows: those of topics and members."""

    topic_ids: Sequence[bytes] = ()
    member_ids: Sequence[str] = ()


@dataclass
class Plausible(Maker):
    """A Maker of values that a client would send, and sometimes of arbitrary ones."""

    world: World = World()
    within: str = ""

    def value(self, name: str, field: Field) -> Any:
        if self.version in field.nullable and self.dice.random() < self.null:
            return None
        if isinstance(field, Array) and isinstance(field.element, Struct):
            outside, self.within = self.within, name
            try:
                return super().value(name, field)
            finally:
                self.within = outside
        if self.dice.random() < ODD:
            return super().value(name, field)
        return self.likely(name, field)

    def likely(self, name: str, field: Field) -> Any:
        if isinstance(field, Array):
            count = self.dice.choice(self.counts)
            return [self.value(name, field.element) for _ in range(count)]
        if name == "name":
            return self.dice.choice(NAMES.get(self.within, TOPICS))
        if name == "value":
            return self.dice.choice(VALUES if self.version in field.nullable else VALUES[:-1])
        if isinstance(field, Records):
            return self.dice.choice(BATCHES)
        if isinstance(field, Bytes):
            return self.dice.choice([b"", b"\0\1\0\0\0\0\0\0", b"any bytes"])
        if isinstance(field, Uuid):
            return self.dice.choice([*self.world.topic_ids, bytes(16)])
        if name == "member_id" and self.world.member_ids and self.dice.random() < 0.7:
            return self.dice.choice(self.world.member_ids)
        if name in CHOICES and not isinstance(field, Struct):
            chosen = self.dice.choice(CHOICES[name])
            return chosen if chosen is not None or self.version in field.nullable else field.zero
        return super().value(name, field)


def request(
    dice: random.Random, handler: Handler, version: int, correlation_id: int, world: World
) -> bytes:
    """Return one frame, without its size."""
    maker = Plausible(dice, version, null=0.15, small=True, world=world)
    body = handler.api.request.write(version, maker.struct(handler.api.request.struct))
    flexible = handler.api.request_header_flexible(version)
    return write_header(handler.api.key, version, correlation_id, "fuzz", flexible) + body


class Read:
    """A frame decoded as a broker does, as far as it is valid."""

    def __init__(self, frame: bytes) -> None:
        self.header: RequestHeader | None = None
        self.handler: Handler | None = None
        self.fields: Fields | None = None
        try:
            self.header = read_header(frame)
            handler = SERVED.get(self.header.api_key)
            if handler is not None and handler.low <= self.header.version <= handler.high:
                self.handler = handler
                position = self.header.body_position
                self.fields = handler.api.request.read(self.header.version, frame, position)
        except InvalidRequest:
            pass

    @property
    def awaits_nothing(self) -> bool:
        """True for a Produce without a response (acks=0)."""
        return (
            self.handler is not None
            and self.handler.api is PRODUCE
            and self.fields is not None
            and self.fields.acks == 0
        )


class Sparing:
    """The filter of frames to send: those the broker can handle for any duration."""

    def __init__(self) -> None:
        self.foreign: set[str] = set()

    def spares(self, read: Read) -> bool:
        """Return True if the request's load on the broker is limited."""
        if read.handler is None or read.fields is None:
            return True
        api, fields = read.handler.api, read.fields
        if api in (CREATE_TOPICS, CREATE_PARTITIONS):
            return self.few_partitions(fields)
        if api is DELETE_TOPICS:
            return HEALTHY not in str(fields)
        if api in (ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS):
            here = (TOPIC_RESOURCE, *OTHER_RESOURCES)
            named = self.known(each.resource_name for each in fields.resources)
            return named and all(each.resource_type in here for each in fields.resources)
        if fields.get("allow_auto_topic_creation") and fields.topics:
            return self.known(topic.name for topic in fields.topics)
        if "group_id" in fields:
            return self.known([fields.group_id])
        return True

    def few_partitions(self, fields: Fields) -> bool:
        count = 0
        for topic in fields.topics:
            asked = topic.get("num_partitions", topic.get("count", 0))
            count += max(asked, len(topic.assignments or ()), 1)
        return count <= PARTITIONS_MAX and self.known(topic.name for topic in fields.topics)

    def known(self, names: Any) -> bool:
        """Return True if the names add at most a few arbitrary ones to those in use."""
        foreign = {name for name in names if name is not None and name not in KNOWN}
        if len(self.foreign | foreign) > FOREIGN_MAX:
            return False
        self.foreign |= foreign
        return True
