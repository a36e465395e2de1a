"""The twin of the gateway's message decoder: a message's frames to records or an error code."""

import struct


def read(frames, count, record_size_max):
    """Return [(partition or None, key, value, headers, timestamp or None)] for the frames after a
    topic's name, or a Kafka error code; partition None: chosen as for records without a key."""
    if len(frames) == 1:
        return read_pack(frames[0], count, record_size_max)
    if not 2 <= len(frames) <= 5:
        return 42
    key, value, headers, timestamp, partition = [*frames, b"", b"", b""][:5]
    pairs = fields(headers, nullable=(False, True))
    if pairs is None or not digits(timestamp) or not digits(partition):
        return 42
    if partition and int(partition) >= count:
        return 3
    size = len(key) + len(value) + len(varint(len(pairs) // 2))
    size += sum(len(varint(-1 if part is None else len(part))) + len(part or b"") for part in pairs)
    if size + 36 > record_size_max:
        return 10
    named = tuple(zip((name.decode("utf-8", "surrogateescape") for name in pairs[::2]), pairs[1::2],
                      strict=True))  # fmt: skip
    place = int(partition) if partition else place_of(key, count)
    return [(place, key or None, value, named, int(timestamp) if timestamp else None)]


def read_pack(frame, count, record_size_max):
    if frame[:4] not in (b"KLV1", b"KLK1") or len(frame) == 4:
        return 42
    keyed = frame[:4] == b"KLK1"
    parts = fields(frame[4:], nullable=(False,) * (2 if keyed else 1))
    if parts is None:
        return 42
    entries = list(zip(parts[::2], parts[1::2], strict=True)) if keyed else [
        (b"", part) for part in parts
    ]  # fmt: skip
    if max(len(key) + len(value) for key, value in entries) + 36 > record_size_max:
        return 10
    return [(place_of(key, count), key or None, value, (), None) for key, value in entries]


def fields(frame, nullable):
    """Return the length-prefixed fields, or None unless they are whole groups of `nullable`."""
    found = []
    while frame:
        for may_be_null in nullable:
            if len(frame) < 4:
                return None
            (size,) = struct.unpack_from(">I", frame)
            if size == 0xFFFFFFFF and may_be_null:
                found.append(None)
                size = 0
            elif size > len(frame) - 4:
                return None
            else:
                found.append(frame[4 : 4 + size])
            frame = frame[4 + size :]
    return found


def digits(frame):
    return len(frame) <= 18 and all(48 <= byte <= 57 for byte in frame)


def varint(number):
    raw = (number << 1) ^ (number >> 63)
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes(out) + bytes([raw])


def place_of(key, count):
    return (murmur2(key) & 0x7FFFFFFF) % count if key else None


def murmur2(key):
    hashed = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        (four,) = struct.unpack_from("<I", key, at)
        four = four * 0x5BD1E995 & 0xFFFFFFFF
        four = (four ^ four >> 24) * 0x5BD1E995 & 0xFFFFFFFF
        hashed = hashed * 0x5BD1E995 & 0xFFFFFFFF ^ four
    if key[whole:]:
        hashed = (hashed ^ int.from_bytes(key[whole:], "little")) * 0x5BD1E995 & 0xFFFFFFFF
    hashed = (hashed ^ hashed >> 13) * 0x5BD1E995 & 0xFFFFFFFF
    return hashed ^ hashed >> 15
