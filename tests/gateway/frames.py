"""Frames of the gateway's documentation, built as a sender does."""

import struct


def sized(content):
    return struct.pack(">I", len(content)) + content


def headers(*pairs):
    return b"".join(
        sized(name) + (b"\xff\xff\xff\xff" if value is None else sized(value))
        for name, value in pairs
    )


def pack(*values):
    return b"KLV1" + b"".join(map(sized, values))


def keyed_pack(*entries):
    return b"KLK1" + b"".join(sized(key) + sized(value) for key, value in entries)
