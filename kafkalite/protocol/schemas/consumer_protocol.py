"""The consumer's part of the classic group protocol: subscriptions and assignments as bytes.

Members send a subscription in JoinGroup, the leader an assignment for each member in SyncGroup; the
coordinator passes both on.  Each begins with its version, and a newer version only appends fields,
so a reader takes what it knows and ignores the rest, as Kafka's clients do.

    JoinGroup   protocols[].metadata      ConsumerProtocolSubscription (KIP-429, KIP-792, KIP-881)
    SyncGroup   assignments[].assignment  ConsumerProtocolAssignment
"""

from kafkalite.errors import InvalidRequest
from kafkalite.protocol.schema import Fields, MessageSchema
from kafkalite.protocol.types import Array, Bytes, Int32, String, Struct

PROTOCOL_TYPE = "consumer"
"""The protocol type of groups of consumers, whose metadata is a subscription."""
SUBSCRIPTION_VERSION = 3
ASSIGNMENT_VERSION = 0
"""Written in the version that every client reads; the later ones have the same fields."""

VERSION_SIZE = 2
UNITS_MAX = 1 << 20

TOPIC_PARTITIONS = Struct(topic=String(), partitions=Array(Int32()))

CONSUMER_SUBSCRIPTION = MessageSchema(
    "ConsumerProtocolSubscription",
    Struct(
        topics=Array(String()),
        user_data=Bytes(nullable="0+", default=None),
        owned_partitions=Array(TOPIC_PARTITIONS, "1+"),
        generation_id=Int32("2+", default=-1),
        rack_id=String("3+", nullable="3+", default=None),
    ),
    versions="0-3",
    units_max=UNITS_MAX,
)
SUBSCRIBED_TOPICS = MessageSchema(
    "topics of a subscription", Struct(topics=Array(String())), versions="0", units_max=1 << 16
)
"""The fields with which every version of a subscription begins."""
CONSUMER_ASSIGNMENT = MessageSchema(
    "ConsumerProtocolAssignment",
    Struct(
        assigned_partitions=Array(TOPIC_PARTITIONS),
        user_data=Bytes(nullable="0+", default=None),
    ),
    versions="0-3",
    units_max=UNITS_MAX,
)


def write_versioned(schema: MessageSchema, version: int, values: dict[str, object]) -> bytes:
    """Return a message with its version before it."""
    return version.to_bytes(VERSION_SIZE, "big") + schema.write(version, values)


def read_versioned(schema: MessageSchema, message: bytes | memoryview) -> Fields:
    """Decode a message that begins with its version; raise InvalidRequest if it is not valid."""
    version = int.from_bytes(message[:VERSION_SIZE], "big", signed=True)
    if len(message) < VERSION_SIZE or version < 0:
        raise InvalidRequest(f"The bytes are not a valid {schema.name}.")
    newest = schema.versions.high
    return schema.read(version if newest is None else min(version, newest), message, VERSION_SIZE)


def subscribed_topics(metadata: bytes) -> set[str] | None:
    """Return the topics of a subscription; None if the metadata is not a subscription."""
    version = int.from_bytes(metadata[:VERSION_SIZE], "big", signed=True)
    if len(metadata) < VERSION_SIZE or version < 0:
        return None
    try:
        return set(SUBSCRIBED_TOPICS.read(0, metadata, VERSION_SIZE)["topics"])
    except InvalidRequest:
        return None
