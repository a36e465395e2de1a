"""Frames made from recorded and generated ones by damage and splicing, for as long as configured.

    FUZZ_SECONDS=3600 FUZZ_SEED=17 make fuzz ARGS=tests/fuzz/test_fuzz_protocol.py

For any bytes the result is a header, a body or an error, in memory proportional to the bytes;
Produce and Fetch agree with their schemas; and what was read can be written and read again.  A
failure prints its seed and its frame.
"""

from __future__ import annotations

import os
import random
import resource
import time
from pathlib import Path

import pytest

from kafkalite._ext import wire
from kafkalite.errors import InvalidRequest
from kafkalite.protocol.frame import read_header, response_header, write_header
from kafkalite.protocol.schema import BY_KEY, Api, MessageSchema
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.produce import PRODUCE
from tests.fuzz.tearing import torn
from tests.protocol.annotated import bytes_of
from tests.protocol.values import filled, versions
from tests.twins import wire as twins

SECONDS = float(os.environ.get("FUZZ_SECONDS", "60"))
FRAMES = sorted((Path(__file__).parents[1] / "golden" / "frames").glob("*.txt"))
FRAME_SIZE_MAX = 4096
RSS_GROWTH_MIB_MAX = 64
BY_HAND = {
    PRODUCE.key: (wire.decode_produce, twins.decode_produce),
    FETCH.key: (wire.decode_fetch, twins.decode_fetch),
}

Sample = tuple[Api, int, bool, bytes]


def corpus() -> list[Sample]:
    """Return (API, version, is it a request, frame)."""
    samples: list[Sample] = []
    for path in FRAMES:
        _, request, response = path.read_text().split("\n\n")
        header = read_header(bytes_of(request.splitlines()))
        api = BY_KEY[header.api_key]
        samples.append((api, header.version, True, bytes_of(request.splitlines())))
        samples.append((api, header.version, False, bytes_of(response.splitlines())))
    for api in BY_KEY.values():
        for version in versions(api):
            values = filled(api.request, version, small=True, counts=(1, 2))
            head = write_header(api.key, version, 7, "a", api.request_header_flexible(version))
            samples.append((api, version, True, head + api.request.write(version, values)))
            values = filled(api.response, version, small=True, counts=(1, 2))
            head = response_header(7, api.response_header_flexible(version))
            samples.append((api, version, False, head + api.response.write(version, values)))
    return samples


def read_request(frame: bytes) -> None:
    try:
        header = read_header(frame)
    except InvalidRequest:
        return
    api = BY_KEY.get(header.api_key)
    if api is None or not api.versions[0] <= header.version <= api.versions[1]:
        return
    if api.key in BY_HAND:
        decode, twin = BY_HAND[api.key]
        position = header.body_position
        assert decode(header.version, frame, position) == twin(header.version, frame, position)
    read(api.request, header.version, frame, header.body_position)


def read(message: MessageSchema, version: int, frame: bytes, position: int) -> None:
    try:
        fields = message.read(version, frame, position)
    except InvalidRequest:
        return
    written = message.write(version, fields)
    # Compared as bytes and not as values, because a NaN does not equal itself.
    assert message.write(version, message.read(version, written)) == written


@pytest.mark.fuzz
def test_random_frame_is_read_or_rejected():
    seed = int(os.environ.get("FUZZ_SEED", random.SystemRandom().getrandbits(32)))
    dice = random.Random(seed)
    samples = corpus()
    began = time.monotonic()
    rss_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count = 0
    while time.monotonic() - began < SECONDS:
        api, version, is_request, frame = dice.choice(samples)
        frame = torn(frame, dice.choice(samples)[3], dice)[:FRAME_SIZE_MAX]
        try:
            if is_request:
                read_request(frame)
            else:
                start = 4 + api.response_header_flexible(version)
                read(api.response, version, frame, start)
        except BaseException as fault:
            fault.add_note(f"seed {seed}, {api.name} {version}, frame {frame.hex()}")
            raise
        count += 1
    growth_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rss_kib) / 1024
    print(f"{count} frames, seed {seed}, {growth_mib:.0f} MiB more")
    assert growth_mib < RSS_GROWTH_MIB_MAX
