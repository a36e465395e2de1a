"""The twin of ext/client/record_writer.pyx: columns are lists, sizes are found by trying."""

from . import record_batch, records


def build(rows, attributes=0, producer_id=-1, producer_epoch=-1, base_sequence=-1) -> bytearray:
    """Return the batch of rows (key, value, headers, timestamp), as a producer sends it."""
    times = [row[3] for row in rows]
    return record_batch.build(
        payload(rows),
        attributes=attributes,
        last_offset_delta=len(rows) - 1,
        base_timestamp=times[0],
        max_timestamp=max(times),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        count=len(rows),
    )


def payload(rows) -> bytes:
    return records.encode(
        [
            (place, wrapped(time - rows[0][3]), key, value, headers)
            for place, (key, value, headers, time) in enumerate(rows)
        ]
    )


def wrapped(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def fitting(rows, room: int) -> int:
    """Return the number of leading rows whose payload fits."""
    for place in range(len(rows)):
        if len(payload(rows[: place + 1])) > room:
            return place
    return len(rows)
