"""Decoding of a record range into a builder of messages or columns, step by step.

Aborted transactions, if the fetch response lists any, are skipped as in Kafka's clients: from the
first offset of the transaction its producer's batches are skipped up to the abort marker
(ext/codec/aborted_transactions.pxd).
"""

from __future__ import annotations

from kafkalite.client.consumer.record_range import RecordRange, ShortRead
from kafkalite.client.decoding.record_sets import UNPACKED_SIZE_MAX, Builder, decode_set
from kafkalite.client.net.topology import partition_name
from kafkalite.errors import KafkaError


def decode(record_range: RecordRange, builder: Builder, size_max: int) -> bool:
    """Decode until the builder has about `size_max` bytes; return False if the range has no more.

    Records before an error are returned before it is raised: ShortRead, or the error of a batch,
    with the partition and the offset.
    """
    try:
        while builder.size < size_max:
            window = record_range.window()
            if not window:
                return False
            size, record_range.first_offset = decode_set(
                builder, window, 0, record_range.first_offset, size_max, UNPACKED_SIZE_MAX,
                record_range.aborted,
            )  # fmt: skip
            record_range.take(size)
            if not size:
                return True  # the builder is full before `size_max`
    except ShortRead:
        if not builder.count:
            raise
    except KafkaError as error:
        if not builder.count:
            raise type(error)(
                f"{partition_name(record_range.position.partition)}: {error}"
            ) from None
    return True
