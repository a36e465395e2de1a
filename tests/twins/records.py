"""The twin of ext/codec/records.pyx."""

from io import BytesIO


class Fault(Exception):
    """The bytes are not valid records."""


def take(source: BytesIO, size: int) -> bytes:
    taken = source.read(size)
    if len(taken) < size:
        raise Fault
    return taken


def take_varint(source: BytesIO, bits: int = 32) -> int:
    value = 0
    for shift in range(0, bits, 7):
        byte = take(source, 1)[0]
        value |= (byte & 0x7F) << shift
        if value >> bits:
            raise Fault
        if byte < 0x80:
            return value >> 1 ^ -(value & 1)
    raise Fault


def take_field(source: BytesIO) -> bytes | None:
    size = take_varint(source)
    if size < -1:
        raise Fault
    return None if size == -1 else take(source, size)


def take_header(source: BytesIO) -> tuple[str, bytes | None]:
    name = take_field(source)
    if name is None:
        raise Fault
    return name.decode("utf-8", "surrogateescape"), take_field(source)


def take_record(source: BytesIO) -> tuple:
    size = take_varint(source)
    if size < 0:
        raise Fault
    body = BytesIO(take(source, size))
    take(body, 1)
    timestamp_delta = take_varint(body, 64)
    offset_delta = take_varint(body)
    key, value = take_field(body), take_field(body)
    header_count = take_varint(body)
    if header_count < 0:
        raise Fault
    headers = tuple(take_header(body) for _ in range(header_count))
    if body.read(1):
        raise Fault
    return offset_delta, timestamp_delta, key, value, headers


def decode(payload: bytes, count: int, last_offset_delta: int | None = None) -> list[tuple] | int:
    last = count - 1 if last_offset_delta is None else last_offset_delta
    source = BytesIO(payload)
    try:
        if count < 0:
            raise Fault
        records = [take_record(source) for _ in range(count)]
    except Fault:
        return 87
    deltas = [-1, *(record[0] for record in records), last]
    ascend = all(one < next for one, next in zip(deltas[:-1], deltas[1:-1], strict=False))
    return 87 if source.read(1) or not ascend or deltas[-2] > last else records


def validate(payload: bytes, count: int, last_offset_delta: int | None = None) -> int:
    found = decode(payload, count, last_offset_delta)
    return found if isinstance(found, int) else 0


def timestamps(payload, count, base_timestamp, oldest, newest, count_max, inside):
    found = decode(payload, count)
    if isinstance(found, int):
        return found
    sums = [base_timestamp + record[1] for record in found]
    times = [(place, (at + (1 << 63)) % (1 << 64) - (1 << 63)) for place, at in enumerate(sums)]
    if inside:
        return [it for it in times if oldest <= it[1] <= newest][:count_max]
    return [it for it in times if it[1] != -1 and not oldest <= it[1] <= newest][:count_max]


def varint(value: int) -> bytes:
    value = value << 1 if value >= 0 else ~value << 1 | 1
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def field(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def encode(records: list[tuple]) -> bytes:
    payload = b""
    for offset_delta, timestamp_delta, key, value, headers in records:
        body = b"\0" + varint(timestamp_delta) + varint(offset_delta) + field(key) + field(value)
        body += varint(len(headers))
        for name, content in headers:
            body += field(name.encode("utf-8", "surrogateescape")) + field(content)
        payload += varint(len(body)) + body
    return payload
