"""The compiled Produce and Fetch codecs against their twins, the schemas: on valid bytes, on bytes
cut short or changed, and on false lengths; in every version."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite._ext import wire
from kafkalite.errors import InvalidRecord, InvalidRequest
from kafkalite.protocol.frame import response_header
from kafkalite.protocol.results import PartitionAppendResult, PartitionFetchResult
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.produce import PRODUCE
from tests.protocol.test_invalid_bytes import false_lengths
from tests.protocol.values import filled, versions
from tests.twins import wire as twins
from tests.twins.codec import Length, joined, tokens
from tests.twins.wire import topic_of

CORRELATION_ID = 1_234_567
MOST = wire.FETCH_NAMES_MAX
HEAD = b"whatever the header says"
PRODUCE_VERSIONS = pytest.mark.parametrize("version", versions(PRODUCE))
FETCH_VERSIONS = pytest.mark.parametrize("version", versions(FETCH))


CODECS = [
    (PRODUCE, wire.decode_produce, twins.decode_produce),
    (FETCH, wire.decode_fetch, twins.decode_fetch),
]
DECODERS = pytest.mark.parametrize(("api", "decode", "twin"), CODECS, ids=["produce", "fetch"])


@DECODERS
@given(seed=st.integers(0, 1 << 30), null=st.sampled_from([0.0, 0.5]))
def test_decoded_request_equals_the_schema(api, decode, twin, seed, null):
    for version in versions(api):
        frame = HEAD + api.request.write(version, filled(api.request, version, seed, null=null))
        read = decode(version, memoryview(frame), len(HEAD))
        assert read == twin(version, frame, len(HEAD))
        assert isinstance(read, tuple)


def fetch_of(version, topics=0, partitions=0, forgotten=0, forgotten_partitions=0):
    """Return a frame whose last topic, requested or forgotten, has all of the partitions."""
    named = [{"partitions": []} for _ in range(topics)]
    left = [{"partitions": []} for _ in range(forgotten)]
    if partitions:
        named[-1]["partitions"] = [{"partition": index} for index in range(partitions)]
    if forgotten_partitions:
        left[-1]["partitions"] = [*range(forgotten_partitions)]
    fields = {"topics": named, "forgotten_topics_data": left}
    return FETCH.request.write(version, fields)


@pytest.mark.parametrize("version", [7, 12, 17])
@pytest.mark.parametrize(
    "counts",
    [
        {"topics": 1, "partitions": MOST - 1},
        {"topics": MOST // 2, "partitions": MOST // 2},
        {"topics": MOST},
        {"forgotten": 1, "forgotten_partitions": MOST - 1},
        {"topics": 1, "forgotten": MOST - 1},
    ],
)
def test_decode_fetch_rejects_more_than_fetch_names_max(version, counts):
    at_most = fetch_of(version, **counts)
    read = wire.decode_fetch(version, at_most, 0)
    assert read == twins.decode_fetch(version, at_most, 0)
    topics, forgotten = read[7:9]
    assert sum(1 + len(indexes) for _, indexes in topics + forgotten) == MOST
    last = next(reversed(counts))
    too_many = fetch_of(version, **{**counts, last: counts[last] + 1})
    read = wire.decode_fetch(version, too_many, 0)
    assert read == twins.decode_fetch(version, too_many, 0)
    assert read[7:9] == (None, [])


def test_decode_fetch_above_the_limit_allocates_no_memory():
    whole = fetch_of(12, topics=2 * MOST)
    tracemalloc.start()
    try:
        read = wire.decode_fetch(12, whole, 0)
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()
    assert read[7] is None


@DECODERS
def test_truncated_or_changed_request_is_decoded_as_by_the_schema(api, decode, twin):
    dice = random.Random(4)
    for version in versions(api):
        values = filled(api.request, version, small=True, counts=(2,))
        frame = bytearray(api.request.write(version, values))
        for at in range(len(frame)):
            cut = bytes(frame[:at])
            assert decode(version, cut, 0) == twin(version, cut, 0) == InvalidRequest.code
            for flip in (1, 0x80, dice.randint(1, 255)):
                changed = bytearray(frame)
                changed[at] ^= flip
                assert decode(version, bytes(changed), 0) == twin(version, bytes(changed), 0)


@DECODERS
def test_false_lengths_are_decoded_as_by_the_schema(api, decode, twin):
    for version in versions(api):
        parts = tokens(
            api.request, version, filled(api.request, version, small=True, counts=(1, 2))
        )
        for at, length in enumerate(parts):
            if isinstance(length, Length):
                head, tail = joined(parts[:at]), joined(parts[at + 1 :])
                for false_length in false_lengths(length, len(tail)):
                    frame = head + false_length + tail
                    assert decode(version, frame, 0) == twin(version, frame, 0)


@DECODERS
def test_tags_are_decoded_as_by_the_schema(api, decode, twin):
    for version in versions(api):
        if version not in api.flexible:
            continue
        parts = tokens(
            api.request, version, filled(api.request, version, small=True, counts=(1,), null=1.0)
        )
        for tag in range(5):
            for size in (0, 1, 8, 12, 13, 16, 17):
                content = bytes([tag, size]) + bytes(size)
                for at, length in enumerate(parts):
                    if isinstance(length, Length) and length.value == 0:
                        frame = joined(parts[:at]) + b"\x01" + content + joined(parts[at + 1 :])
                        assert decode(version, frame, 0) == twin(version, frame, 0)


@PRODUCE_VERSIONS
def test_encoded_produce_response_equals_the_schema(version):
    for seed, null in ((0, 0.0), (1, 0.3), (2, 1.0)):
        values = filled(PRODUCE.response, version, seed, null=null)
        topics = [
            (
                topic_of(topic, version, "name"),
                [produced(one) for one in topic["partition_responses"]],
            )
            for topic in values["responses"]
        ]
        assert wire.encode_produce(
            version, CORRELATION_ID, topics, values["throttle_time_ms"], nodes(values)
        ) == header(PRODUCE, version) + PRODUCE.response.write(version, values)


def produced(partition: dict[str, Any]) -> PartitionAppendResult:
    errors = [
        (error["batch_index"], error["batch_index_error_message"])
        for error in partition.get("record_errors", ())
    ]
    return PartitionAppendResult(
        partition_index=partition["index"],
        error_code=partition["error_code"],
        base_offset=partition["base_offset"],
        log_append_time_ms=partition["log_append_time_ms"],
        log_start_offset=partition.get("log_start_offset", -1),
        record_errors=errors,
        error_message=partition.get("error_message"),
        current_leader=pair(partition.get("current_leader")),
    )


@FETCH_VERSIONS
def test_encoded_fetch_response_equals_the_schema(version):
    for seed, null in ((0, 0.0), (1, 0.3), (2, 1.0)):
        values = filled(FETCH.response, version, seed, null=null)
        for topic in values["responses"]:
            for one in topic["partitions"]:
                one.pop("snapshot_id", None)  # only for followers of a quorum's log
                one["records"] = one["records"] or b""  # and records are never null
        topics = [
            (topic_of(topic, version, "topic"), [fetched(one) for one in topic["partitions"]])
            for topic in values["responses"]
        ]
        chunks = wire.encode_fetch(
            version,
            CORRELATION_ID,
            values["throttle_time_ms"],
            values.get("error_code", 0),
            values.get("session_id", 0),
            topics,
            nodes(values),
        )
        assert b"".join(chunks) == header(FETCH, version) + FETCH.response.write(version, values)


def fetched(partition: dict[str, Any]) -> PartitionFetchResult:
    aborted = partition["aborted_transactions"]
    return PartitionFetchResult(
        partition_index=partition["partition_index"],
        error_code=partition["error_code"],
        high_watermark=partition["high_watermark"],
        last_stable_offset=partition["last_stable_offset"],
        log_start_offset=partition.get("log_start_offset", -1),
        aborted_transactions=None if aborted is None else [tuple(one.values()) for one in aborted],
        preferred_read_replica=partition.get("preferred_read_replica", -1),
        records=partition["records"] or None,
        current_leader=pair(partition.get("current_leader")),
        diverging_epoch=pair(partition.get("diverging_epoch")),
        epoch_start=partition.get("epoch_start", -1),
    )


def test_encoders_reject_a_result_with_wrong_number_of_fields():
    result = PartitionAppendResult.failed(0, InvalidRecord())
    for wrong in (result[:-1], (*result, None), [*result]):
        with pytest.raises(TypeError, match="expected a result of 8 fields"):
            wire.encode_produce(3, CORRELATION_ID, [("flights", [wrong])], 0)
        with pytest.raises(TypeError, match="expected a result of 11 fields"):
            wire.encode_fetch(4, CORRELATION_ID, 0, 0, 0, [("flights", [wrong])])


def pair(struct: dict[str, int] | None) -> Any:
    return None if struct is None else tuple(struct.values())


def nodes(values: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [tuple(node.values()) for node in values.get("node_endpoints", ())]


def header(api: Any, version: int) -> bytes:
    return response_header(CORRELATION_ID, api.response_header_flexible(version))


class Slice:
    """A stand-in for a file slice: the encoder only uses its size."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


@FETCH_VERSIONS
def test_file_slices_are_chunks_of_a_fetch_response(version):
    slices = [Slice(100), Slice(0), Slice(1 << 30)]
    partitions = [(one, 0, 9, 9, 0, None, -1, slices[one], None, None, -1) for one in range(3)]
    topic = "flights" if version < 13 else bytes(range(16))
    chunks = wire.encode_fetch(version, CORRELATION_ID, 0, 0, 0, [(topic, partitions)])
    kinds = [type(chunk) for chunk in chunks]
    assert kinds[:4] == [bytes, Slice, bytes, Slice]
    assert chunks[1] is slices[0]
    assert chunks[3] is slices[2]


def test_missing_records_are_encoded_as_empty():
    partition = (0, 0, 9, 9, 0, None, -1, None, None, None, -1)
    (frame,) = wire.encode_fetch(4, CORRELATION_ID, 0, 0, 0, [("flights", [partition])])
    body = FETCH.response.read(4, frame, 4)
    assert body.responses[0].partitions[0].records == b""


def test_records_view_shares_the_memory_of_the_frame():
    values = {"topic_data": [{"name": "a", "partition_data": [{"index": 1, "records": b"rrrr"}]}]}
    frame = bytearray(PRODUCE.request.write(9, values))
    _, _, _, [(_, [(_, records)])], _ = wire.decode_produce(9, memoryview(frame), 0)
    frame[frame.index(b"rrrr")] = ord("x")
    assert records == b"xrrr"


def test_repeated_topic_name_is_the_same_object():
    values = {"topic_data": [{"name": "fl" + "ights"}]}
    frame = PRODUCE.request.write(9, values)
    first = wire.decode_produce(9, frame, 0)[3][0][0]
    assert wire.decode_produce(9, bytes(frame), 0)[3][0][0] is first


def test_topic_names_beyond_the_cache_are_distinct():
    names = [f"topic-{index}" for index in range(5000)] + ["é" * 120, "x" * 249, "x" * 250, ""]
    frame = PRODUCE.request.write(9, {"topic_data": [{"name": name} for name in names * 2]})
    assert [topic for topic, _ in wire.decode_produce(9, frame, 0)[3]] == names * 2


def test_decoded_request_size_is_bounded():
    partition = bytes(4) + b"\x00\x00"
    frame = b"\x00" + bytes(6) + b"\x02" + b"\x02a" + b"\x81\x80\x80\x01" + partition * (1 << 21)
    assert wire.decode_produce(9, frame + b"\x00\x00", 0) == InvalidRequest.code


@pytest.mark.parametrize("version", [-1, 2, 14])
def test_unsupported_version_raises_assertion_error(version):
    with pytest.raises(AssertionError):
        wire.decode_produce(version, b"", 0)
    with pytest.raises(AssertionError):
        wire.encode_produce(version, 1, [], 0)
