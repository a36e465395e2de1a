"""Records of the metadata log, in our own notation: what the cluster is, change by change.

A record is the value of one Kafka record whose key is null:

    kind      1 byte    which of the records below
    version   1 byte    of that kind
    fields              in the schema's words, flexible from version 0

A kind keeps its number for good.  A field is added with the version that brings it, so that every
log ever written stays readable.  The batch around the records carries their CRC-32C, and one batch
is one change: whole or not there.

Left out: a checksum of each record's own.  Within a checked batch it would tell nothing new.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kafkalite.errors import CorruptMessage, InvalidRequest, UnsupportedVersion
from kafkalite.protocol.schema import Message
from kafkalite.protocol.types import Array, Int8, Int32, Int64, String, Struct, Uuid

TOPIC_RESOURCE = 2
"""The resource type of a topic's config, in the numbers of DescribeConfigs."""


class RecordKind:
    """One kind of record; calling it makes a record of its newest version."""

    key: int
    name: str
    version: int

    def __init__(self, key: int, name: str, versions: str, fields: Struct) -> None:
        assert key not in BY_KEY, f"{name} and {BY_KEY[key].name} both claim kind {key}"
        BY_KEY[key] = self
        self.key = key
        self.name = name
        self.version = int(versions.rpartition("-")[2])
        self.names = fields.fields.keys()
        self.message = Message(name, fields, versions=versions, flexible="0+", may_drop=False)

    def __call__(self, **fields: Any) -> Record:
        assert fields.keys() == self.names, f"{self.name} has the fields {', '.join(self.names)}"
        return Record(self, fields)

    def __repr__(self) -> str:
        return self.name


class Record(NamedTuple):
    """One record: its kind and its fields."""

    kind: RecordKind
    fields: dict[str, Any]


BY_KEY: dict[int, RecordKind] = {}


def write(record: Record) -> bytes:
    """The bytes of a record, in its kind's newest version."""
    kind = record.kind
    return bytes((kind.key, kind.version)) + kind.message.write(kind.version, record.fields)


def read(value: bytes | memoryview) -> Record:
    """The record of these bytes; CorruptMessage, or UnsupportedVersion for one from the future."""
    if len(value) < 2:
        raise CorruptMessage("A record of the metadata log is too short.")
    kind = BY_KEY.get(value[0])
    if kind is None or value[1] not in kind.message.versions:
        raise UnsupportedVersion(
            f"A newer kafkalite wrote record kind {value[0]} version {value[1]}."
        )
    try:
        fields = kind.message.read(value[1], value, 2)
    except InvalidRequest as fault:
        raise CorruptMessage(str(fault)) from None
    # Behind a request clients leave bytes; behind a record of ours nobody does.
    if kind.message.write(value[1], fields) != value[2:]:
        raise CorruptMessage(f"A record of kind {kind} has more than its fields.")
    return Record(kind, fields)


CLUSTER = RecordKind(
    1, "Cluster", "0",
    Struct(cluster_id=String()),
)  # fmt: skip

NODE = RecordKind(
    2, "Node", "0",
    Struct(node_id=Int32(), host=String(), port=Int32(), rack=String(nullable="0+", default=None)),
)  # fmt: skip

TOPIC = RecordKind(
    3, "Topic", "0",
    Struct(name=String(), topic_id=Uuid()),
)  # fmt: skip

PARTITION = RecordKind(
    4, "Partition", "0",
    Struct(
        topic_id=Uuid(),
        partition=Int32(),
        leader=Int32(),
        leader_epoch=Int32(),
        replicas=Array(Int32()),
        isr=Array(Int32()),
    ),
)  # fmt: skip

REMOVE_TOPIC = RecordKind(
    5, "RemoveTopic", "0",
    Struct(topic_id=Uuid()),
)  # fmt: skip

CONFIG = RecordKind(
    6, "Config", "0",
    Struct(
        resource_type=Int8(),
        resource_name=String(),
        name=String(),
        value=String(nullable="0+", default=None),
    ),
)  # fmt: skip

PRODUCER_IDS_BLOCK = RecordKind(
    7, "ProducerIdsBlock", "0",
    Struct(first_id=Int64(), count=Int32(), node_id=Int32()),
)  # fmt: skip
