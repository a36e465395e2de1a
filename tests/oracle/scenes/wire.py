"""Invalid frames: the broker responds, waits, or closes the connection."""

from __future__ import annotations

import struct

from kafkalite.protocol.schema import BY_KEY, Api
from kafkalite.protocol.schemas import (
    cluster,
    configs,
    fetch,
    groups,
    offsets,
    topics,
    transactions,
)
from kafkalite.protocol.schemas import produce as produce_schema
from kafkalite.protocol.schemas.cluster import API_VERSIONS, METADATA
from tests.oracle.batches import batch
from tests.oracle.conversation import Conversation, Topic
from tests.oracle.scenes import produce, scene

SERVED = (
    produce_schema.PRODUCE, fetch.FETCH, offsets.LIST_OFFSETS, cluster.METADATA,
    topics.CREATE_TOPICS, topics.DELETE_TOPICS, topics.CREATE_PARTITIONS, offsets.DELETE_RECORDS,
    transactions.INIT_PRODUCER_ID, offsets.OFFSET_FOR_LEADER_EPOCH, cluster.DESCRIBE_CLUSTER,
    cluster.DESCRIBE_TOPIC_PARTITIONS, groups.FIND_COORDINATOR, groups.JOIN_GROUP,
    groups.SYNC_GROUP, groups.HEARTBEAT, groups.LEAVE_GROUP, groups.OFFSET_COMMIT,
    groups.OFFSET_FETCH, groups.OFFSET_DELETE, groups.DESCRIBE_GROUPS, groups.LIST_GROUPS,
    groups.DELETE_GROUPS, configs.DESCRIBE_CONFIGS, configs.ALTER_CONFIGS,
    configs.INCREMENTAL_ALTER_CONFIGS, configs.LIST_CONFIG_RESOURCES, topics.DESCRIBE_LOG_DIRS,
    topics.ELECT_LEADERS, transactions.DESCRIBE_PRODUCERS, cluster.DESCRIBE_QUORUM,
    configs.GET_TELEMETRY_SUBSCRIPTIONS, configs.PUSH_TELEMETRY,
)  # fmt: skip
SOUND = {
    API_VERSIONS.key: {"client_software_name": "oracle", "client_software_version": "1"},
    produce_schema.PRODUCE.key: produce.body(Topic("nowhere", b"\x07" * 16), {0: batch()}),
    # An illegal name, so that no version creates the topic.
    METADATA.key: {"topics": [{"name": "a/b"}]},
    transactions.INIT_PRODUCER_ID.key: {"transactional_id": None, "transaction_timeout_ms": 1},
    topics.CREATE_TOPICS.key: {"topics": [{"name": "a/b", "num_partitions": 1}]},
    topics.CREATE_PARTITIONS.key: {"topics": [{"name": "nowhere", "count": 5}]},
}


def frame(api: Api, version: int, body: bytes, *, flexible: bool | None = None) -> bytes:
    """Return header and body preceded by their size."""
    header = struct.pack(">hhih6s", api.key, version, 1, 6, b"oracle")
    if api.request_header_flexible(version) if flexible is None else flexible:
        header += b"\0"
    return struct.pack(">i", len(header) + len(body)) + header + body


def sound_body(api: Api, version: int) -> bytes:
    return api.request.write(version, dict(SOUND.get(api.key, {})))


@scene()
def a_version_nobody_serves_ends_the_connection(talk):
    for api in SERVED:
        low, high = api.versions
        for version in sorted({low - 1, high + 1, 99, 32767, -1}):
            body = sound_body(api, high)
            talk.send(frame(api, version, body), note=f"{api.name} v{version}")


@scene()
def an_api_nobody_knows_ends_the_connection(talk):
    for key in (4, 7, 999, 32767, -1, -32768):
        raw = struct.pack(">ihhih", 10, key, 0, 1, -1)
        talk.send(raw, note=f"api key {key}")


@scene()
def versions_yet_unknown_are_answered_in_version_0(talk):
    about = {"client_software_name": "oracle", "client_software_version": "1"}
    body = API_VERSIONS.request.write(3, about)
    for version in (6, 99, 32767):
        talk.correlation_id += 1
        header = struct.pack(">hhih6s", 18, version, talk.correlation_id, 6, b"oracle") + b"\0"
        answer = talk.exchange(header + body)
        assert answer is not None, f"ApiVersions v{version} was hung up on"
        shown = talk.plain(API_VERSIONS.response.read(0, answer, 4))
        talk.said.append({"asked": f"ApiVersions v{version}", "answer": shown})
    talk.send(frame(API_VERSIONS, -1, body), note="ApiVersions v-1")
    talk.send(frame(API_VERSIONS, 99, b"\xff\xff\xff"), note="ApiVersions v99 with garbage")


@scene()
def sizes_that_cannot_be_end_the_connection(talk):
    for size in (-1, -(1 << 31), 0, 1, 7, (100 << 20) + 1, (1 << 31) - 1):
        talk.send(struct.pack(">i", size) + bytes(min(max(size, 0), 7)), note=f"size {size}")
    talk.send(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", note="another protocol")
    talk.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40), note="a TLS hello")
    talk.send(b"\0\0", note="half a size")


@scene()
def a_frame_that_ends_early_is_waited_for(talk):
    whole = frame(METADATA, 9, sound_body(METADATA, 9))
    talk.send(whole[:-1], note="all but a byte")


@scene()
def bodies_cut_short_or_too_long_end_the_connection(talk):
    for api in (*SERVED, API_VERSIONS):
        for version in sorted({api.versions[0], api.versions[1] - 1, api.versions[1]}):
            if version < api.versions[0]:
                continue
            body = sound_body(api, version)
            what = f"{api.name} v{version}"
            talk.send(frame(api, version, body), note=f"{what}, sound")
            talk.send(frame(api, version, body[:-1]), note=f"{what}, a byte short")
            talk.send(frame(api, version, b""), note=f"{what}, no body")
            talk.send(frame(api, version, body + b"\0"), note=f"{what}, a byte more")
            talk.send(frame(api, version, b"\xff" * len(body)), note=f"{what}, all ones")
            header_flexible = not api.request_header_flexible(version)
            talk.send(
                frame(api, version, body, flexible=header_flexible), note=f"{what}, other header"
            )


@scene()
def counts_that_lie_end_the_connection(talk):
    for count in (2, 0x7FFFFFFF, -2, -(1 << 31)):
        body = struct.pack(">i", count) + b"\0\x01a\0"
        talk.send(frame(METADATA, 4, body), note=f"{count} topics said, one sent")
    for count in (b"\x03", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"):
        body = count + b"\x02a\0\0\0\0\0"
        talk.send(frame(METADATA, 9, body), note=f"{count.hex()} topics said, one sent")
    for length in (2, 32767, -2):
        body = struct.pack(">ih", 1, length) + b"a\0"
        talk.send(frame(METADATA, 4, body), note=f"a name of {length} said, one letter sent")
    body = struct.pack(">ih", 1, -1) + b"\0"
    talk.send(frame(METADATA, 4, body), note="a null name where none may be")
    body = struct.pack(">ih2s?", 1, 2, b"\xff\xfe", False)
    talk.send(frame(METADATA, 4, body), note="a name that is no UTF-8")


@scene()
def headers_may_be_odd(talk):
    body = sound_body(METADATA, 4)
    for note, client, correlation_id in (
        ("no client id", struct.pack(">h", -1), 1),
        ("an empty client id", struct.pack(">h", 0), 1),
        ("a client id of negative length", struct.pack(">h", -5), 1),
        ("a client id longer than the frame", struct.pack(">h", 30_000), 1),
        ("a client id that is no UTF-8", struct.pack(">h2s", 2, b"\xff\xfe"), 1),
        ("a negative correlation id", struct.pack(">h", -1), -7),
    ):
        raw = struct.pack(">hhi", METADATA.key, 4, correlation_id) + client + body
        talk.send(struct.pack(">i", len(raw)) + raw, note=note)
    tagged = struct.pack(">hhih", METADATA.key, 9, 1, -1)
    for note, tags in (("an unknown tag", b"\x01\x63\x02ab"), ("a tag cut short", b"\x01\x63\x7f")):
        raw = tagged + tags + sound_body(METADATA, 9)
        talk.send(struct.pack(">i", len(raw)) + raw, note=note)


@scene()
def requests_in_one_breath_are_answered_in_turn(talk: Conversation) -> None:
    line = talk.line()
    parts = []
    for correlation_id in (11, 12, 13):
        body = METADATA.request.write(4, SOUND[METADATA.key])
        raw = struct.pack(">hhih", METADATA.key, 4, correlation_id, -1) + body
        parts.append(struct.pack(">i", len(raw)) + raw)
    line.sendall(b"".join(parts))
    order = []
    stream = line.makefile("rb")
    for _ in parts:
        answer = stream.read(int.from_bytes(stream.read(4), "big"))
        order.append(int.from_bytes(answer[:4], "big"))
    talk.said.append({"asked": "three at once", "answer": order})
    assert BY_KEY[METADATA.key] is METADATA
