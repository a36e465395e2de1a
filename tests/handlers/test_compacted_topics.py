"""Requests of clients on compacted topics: records without a key, DeleteRecords, policy changes."""

from __future__ import annotations

import pytest

from kafkalite import errors
from kafkalite.protocol.schemas.configs import INCREMENTAL_ALTER_CONFIGS
from kafkalite.protocol.schemas.offsets import DELETE_RECORDS
from kafkalite.records.batch import Record, build
from kafkalite.records.compression import Codec
from tests.handlers.test_produce import produce, resealed

TOPIC = 2


def keyed(*keys: bytes | None, timestamp: int = 1_000, **fields) -> bytes:
    records = [Record(timestamp=timestamp, key=key, value=b"v") for key in keys]
    return build(records, **fields)


def set_policy(node, policy: str, **more: str) -> int:
    configs = [
        {"name": name.replace("_", "."), "config_operation": 0, "value": value}
        for name, value in {"cleanup_policy": policy, **more}.items()
    ]
    resource = {"resource_type": TOPIC, "resource_name": "a", "configs": configs}
    answer = node.request(
        INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False
    )
    return answer.responses[0].error_code


@pytest.fixture
def topic(broker):
    broker.create("a", 1)
    assert set_policy(broker, "compact") == 0
    return broker


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("version", [3, 7, 8, 13])
def test_record_without_a_key_refuses_the_batch(topic, version, codec):
    entry = produce(topic, keyed(b"k", None, b"", None, codec=codec), version)
    assert entry.error_code == errors.InvalidRecord.code
    if version >= 8:
        assert [each.batch_index for each in entry.record_errors] == [1, 3]
        assert all("without a key" in e.batch_index_error_message for e in entry.record_errors)
        assert entry.error_message == "2 records have no key; the topic is compacted."
    assert topic.node.replicas.leader("a", 0).log.end_offset == 0
    assert topic.node.replicas.traffic["a"].keyless_records == 2
    assert topic.node.replicas.traffic["a"].failed_produces == 1
    accepted = produce(topic, keyed(b"k", b"", codec=codec), version)
    assert (accepted.error_code, accepted.base_offset) == (0, 0)


def test_every_record_without_a_key_is_counted_and_the_first_hundred_are_reported(topic):
    entry = produce(topic, keyed(*[None] * 150))
    assert [each.batch_index for each in entry.record_errors] == list(range(100))
    assert topic.node.replicas.traffic["a"].keyless_records == 150


def test_key_is_checked_although_compressed_records_are_not_validated(topic):
    assert set_policy(topic, "compact", compressed_records_validate="false") == 0
    entry = produce(topic, keyed(None, codec=Codec.ZSTD))
    assert entry.error_code == errors.InvalidRecord.code


def test_too_large_batch_is_refused_before_its_keys_are_checked(topic):
    assert set_policy(topic, "compact", max_message_bytes="70") == 0
    for codec in (Codec.NONE, Codec.GZIP):
        entry = produce(topic, keyed(None, None, codec=codec))
        assert entry.error_code == errors.MessageTooLarge.code


def test_missing_key_is_reported_before_a_wrong_timestamp(topic):
    entry = produce(topic, keyed(None, timestamp=1 << 60))
    assert entry.error_code == errors.InvalidRecord.code


def test_damaged_records_of_a_compacted_topic_are_invalid(topic):
    whole = keyed(b"k", b"l")
    wrong_count = bytearray(whole)
    wrong_count[57:61] = (3).to_bytes(4, "big")
    wrong_count[23:27] = (2).to_bytes(4, "big")
    entry = produce(topic, resealed(bytes(wrong_count)))
    assert (entry.error_code, entry.record_errors) == (errors.InvalidRecord.code, [])


def test_policy_change_applies_to_the_next_batch(topic):
    assert set_policy(topic, "delete") == 0
    assert produce(topic, keyed(None)).error_code == 0
    assert set_policy(topic, "compact,delete") == 0
    assert produce(topic, keyed(None)).error_code == errors.InvalidRecord.code
    assert set_policy(topic, "") == 0
    assert produce(topic, keyed(None)).error_code == 0


def test_broker_appends_records_without_a_key(topic):
    partition = topic.node.replicas.leader("a", 0)
    assert partition.append(keyed(None), from_client=False).last_offset == 0


def delete_records(node, offset: int):
    entry = {"partition_index": 0, "offset": offset}
    asked = [{"name": "a", "partitions": [entry]}]
    answer = node.request(DELETE_RECORDS, 2, topics=asked, timeout_ms=1000)
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize("offset", [-1, 1, 99])
def test_delete_records_needs_the_policy_delete(topic, offset):
    for key in (b"k", b"l"):
        produce(topic, keyed(key))
    for policy in ("compact", ""):
        assert set_policy(topic, policy) == 0
        answer = delete_records(topic, offset)
        assert (answer.error_code, answer.low_watermark) == (errors.PolicyViolation.code, -1)
    assert set_policy(topic, "compact,delete") == 0
    expected = errors.OffsetOutOfRange.code if offset == 99 else 0
    assert delete_records(topic, offset).error_code == expected
