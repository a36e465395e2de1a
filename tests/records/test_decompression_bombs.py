"""Compression bombs: memory and CPU time of a refused one stay within the bound.

Each bomb is decompressed in a child process, where the kernel's peak memory is reset before and
read after.  CPU time is compared with that of valid data of exactly the allowed size, so that a
slow or busy machine makes no difference.
"""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, json, struct, sys, time
import cramjam, lz4.frame, zstandard, zlib
from kafkalite.errors import KafkaError
from kafkalite.records.compression import Codec, compress, decompress

CAP = 16 << 20
ZEROS = bytes(64 << 20)
SOME = b"some records that are what they say" * 100


def zstd_run(size, **shape):
    encoder = zstandard.ZstdCompressor(**shape).compressobj()
    parts = [encoder.compress(ZEROS) for _ in range(size // len(ZEROS))]
    return b"".join(parts) + encoder.flush()


def gzip_run(size):
    encoder = zlib.compressobj(9, wbits=31)
    parts = [encoder.compress(ZEROS) for _ in range(size // len(ZEROS))]
    return b"".join(parts) + encoder.flush()


def xerial(*blocks):
    framed = b"\\x82SNAPPY\\0" + struct.pack(">ii", 1, 1)
    return framed + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def raw(payload):
    return bytes(cramjam.snappy.compress_raw(payload))


def zstd_lying(size):
    # A header with an eight-byte content size, and one block that repeats a byte, then no end.
    return b"\\x28\\xb5\\x2f\\xfd\\xe0" + struct.pack("<Q", size) + b"\\x02\\x00\\x10\\0" * 100_000


def zstd_wide():
    window = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    return zstd_run(1 << 28, compression_params=window)


MANY = 50_000
BOMBS = {
    "gzip": {
        "run": lambda: gzip_run(1 << 26),
        "behind an honest member": lambda: compress(Codec.GZIP, SOME) + gzip_run(1 << 26),
        "empty members": lambda: compress(Codec.GZIP, b"") * MANY,
        "cut short": lambda: gzip_run(1 << 26)[:-9],
    },
    "snappy": {
        "run": lambda: raw(ZEROS),
        "blocks": lambda: xerial(*[raw(ZEROS[: 1 << 20])] * 64),
        "empty blocks": lambda: xerial(*[raw(b"")] * MANY),
        "false length": lambda: b"\\xff\\xff\\xff\\x7f" + raw(SOME)[2:],
        "false length in a block": lambda: xerial(raw(SOME), b"\\xff\\xff\\xff\\x7f" + bytes(99)),
    },
    "lz4": {
        "run": lambda: lz4.frame.compress(ZEROS, block_linked=False),
        "linked blocks of 4 MiB": lambda: lz4.frame.compress(ZEROS, block_size=7),
        "behind an honest frame": lambda: compress(Codec.LZ4, SOME) + compress(Codec.LZ4, ZEROS),
        "empty frames": lambda: compress(Codec.LZ4, b"") * MANY,
        "cut short": lambda: compress(Codec.LZ4, ZEROS)[:-9],
    },
    "zstd": {
        "run": lambda: zstd_run(1 << 30),
        "no content size": lambda: zstd_run(1 << 28, write_content_size=False),
        "behind an honest frame": lambda: compress(Codec.ZSTD, SOME) + zstd_run(1 << 28),
        "empty frames": lambda: compress(Codec.ZSTD, b"") * MANY,
        "false content size": lambda: zstd_lying(100),
        "huge content size": lambda: zstd_lying(1 << 60),
        "widest window": zstd_wide,
        "cut short": lambda: zstd_run(1 << 28)[:-9],
    },
}


def memory(name):
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(name):
                return int(line.split()[1]) << 10


def cpu_seconds(codec, packed):
    began = time.process_time()
    try:
        decompress(codec, packed, CAP)
        fault = None
    except KafkaError as error:
        fault = type(error).__name__
    return time.process_time() - began, fault


codec = Codec[sys.argv[1].upper()]
honest = compress(codec, ZEROS[:CAP])
allowed = min(cpu_seconds(codec, honest)[0] for _ in range(3))
found = {}
for shape, made in BOMBS[sys.argv[1]].items():
    bomb = made()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as marks:
        marks.write("5")
    before = memory("VmRSS")
    _, fault = cpu_seconds(codec, bomb)
    grown = memory("VmHWM") - before
    cost = min(cpu_seconds(codec, bomb)[0] for _ in range(3))
    found[shape] = {"fault": fault, "grown": grown, "cost": cost, "allowed": allowed}
print(json.dumps(found))
"""

CAP = 16 << 20
# Memory a decoder may hold beside its output: the pieces of one step, for lz4 a few of its
# largest blocks, for zstd a window that grows with the output.
HELD = {"gzip": 1 << 20, "snappy": 1 << 20, "lz4": 13 << 20, "zstd": CAP}
ERRORS = {"CorruptMessage", "MessageTooLarge"}


@pytest.mark.parametrize("codec", HELD)
def test_decompression_bomb_stays_within_memory_and_cpu_bounds(codec):
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, codec], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert len(found) >= 4
    for shape, bomb in found.items():
        assert bomb["fault"] in ERRORS, shape
        assert bomb["grown"] < 1.1 * CAP + HELD[codec], (shape, bomb)
        assert bomb["cost"] < 2 * bomb["allowed"] + 0.03, (shape, bomb)
