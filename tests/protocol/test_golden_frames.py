"""Requests of real clients and responses of Apache Kafka 4.4, read and written again.

Each file of tests/golden/frames holds one exchange, captured on the network.  The hex is as
captured; the text beside it is its meaning, and must be what our codec reads.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkalite.protocol.frame import read_header, response_header, write_header
from kafkalite.protocol.schema import BY_KEY
from tests.protocol.annotated import bytes_of, request_lines, response_lines

FRAMES = sorted((Path(__file__).parents[1] / "golden" / "frames").glob("*.txt"))
LEFT_BEHIND = {"03_metadata_v13": 3, "51_alter_user_scram_credentials_v0": 1}
"""Bytes that librdkafka sends after a request; Kafka ignores them, as we do."""


def exchange(path: Path) -> tuple[list[str], list[str]]:
    """Return the lines of the request and those of the response."""
    _, request, response = path.read_text().split("\n\n")
    return request.splitlines(), response.splitlines()


@pytest.mark.parametrize("path", FRAMES, ids=lambda path: path.stem)
def test_golden_request_matches_its_description(path):
    lines, _ = exchange(path)
    frame = bytes_of(lines)
    header = read_header(frame)
    api = BY_KEY[header.api_key]
    fields = api.request.read(header.version, frame, header.body_position)
    flexible = api.request_header_flexible(header.version)
    again = write_header(*header[:4], flexible) + api.request.write(header.version, fields)
    left_behind = frame.removeprefix(again)
    assert len(left_behind) == LEFT_BEHIND.get(path.stem, 0)
    assert request_lines(api, header, fields, left_behind) == lines


@pytest.mark.parametrize("path", FRAMES, ids=lambda path: path.stem)
def test_golden_response_matches_its_description(path):
    request, lines = exchange(path)
    header = read_header(bytes_of(request))
    api, version = BY_KEY[header.api_key], header.version
    frame = bytes_of(lines)
    start = response_header(header.correlation_id, api.response_header_flexible(version))
    assert frame.startswith(start)
    fields = api.response.read(version, frame, len(start))
    assert response_lines(api, version, header.correlation_id, fields) == lines
    assert frame == start + api.response.write(version, fields)


def test_golden_frames_cover_the_first_produce_and_fetch():
    caught = {path.stem.rpartition("_v")[0] for path in FRAMES}
    assert {"00_produce", "01_fetch", "02_list_offsets", "03_metadata", "18_api_versions"} <= caught
    assert len(FRAMES) >= 75
