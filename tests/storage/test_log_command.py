"""`kafkalite log dump` and `kafkalite log verify` over valid, torn and damaged files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kafkalite.cli import main
from kafkalite.config import topic as keys
from kafkalite.records.batch import Codec
from tests.storage.factories import batch, close, open_log, produced


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    log = open_log(tmp_path / "t-0")
    for number in range(30):
        log.append(produced(number, b"value %d" % number), number // 20)
    log.append(batch(b"\xff\0", codec=Codec.GZIP), 1)
    close(log)
    return tmp_path / "t-0"


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def test_dump_shows_every_record_and_every_file(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", "dump", "--records", "--json", str(directory)]) == 0
    shown = lines(capsys)
    records = [record for entry in shown for record in entry.get("records", ())]
    assert [record["offset"] for record in records] == list(range(31))
    assert records[7]["value"] == "value 7"
    assert records[30]["value"] == {"base64": "/wA="}
    assert {Path(str(entry["file"])).suffix for entry in shown} == {
        ".log", ".index", ".timeindex", ".snapshot", "",
    }  # fmt: skip
    epochs = [entry for entry in shown if "start_offset" in entry]
    assert [(entry["leader_epoch"], entry["start_offset"]) for entry in epochs] == [(0, 0), (1, 20)]


def test_dump_as_text_shows_batches_and_records(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", "dump", "--records", str(segments(directory)[0])]) == 0
    out = capsys.readouterr().out
    assert "base_offset=0  last_offset=0  count=1  leader_epoch=0  codec=none" in out
    assert '"value": "value 0"' in out


def test_dump_of_a_truncated_file_reports_the_position(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = segments(directory)[0]
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["log", "dump", str(path)]) == 1
    assert "no valid batch at byte" in capsys.readouterr().err


def test_verify_accepts_a_valid_log(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "verify", str(directory)]) == 0
    assert "no errors" in capsys.readouterr().out


def test_verify_accepts_an_open_preallocated_log(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", {keys.DURABILITY: "fsync", keys.SEGMENT_BYTES: 1 << 20})
    log.append(batch(b"v"), 0)
    assert main(["log", "verify", str(tmp_path)]) == 0
    assert main(["log", "dump", str(tmp_path)]) == 0
    close(log)


def test_verify_distinguishes_a_torn_tail_from_damage(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *_, last = segments(directory)
    last.write_bytes(last.read_bytes()[:-3])
    content = bytearray(first.read_bytes())
    content[100] ^= 1
    first.write_bytes(content)
    assert main(["log", "verify", "--json", str(first), str(last)]) == 1
    middle, tail = lines(capsys)
    assert (middle["file"], middle["torn_tail"]) == (str(first), False)
    assert "the next valid batch begins at byte" in str(middle["fault"])
    assert (tail["file"], tail["torn_tail"]) == (str(last), True)


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint"])
def test_verify_finds_damage_in_other_files(directory: Path, suffix: str) -> None:
    path = next(path for path in sorted(directory.glob("*" + suffix)) if path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[0] ^= 0x80
    path.write_bytes(content)
    assert main(["log", "verify", str(path)]) == 1


def test_verify_finds_a_wrong_index_position(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = next(path for path in sorted(directory.glob("*.index")) if path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(content)
    assert main(["log", "verify", str(path)]) == 1
    assert "which is not the position of its batch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nothing", "does not exist"),
        ("empty", "contains no log files"),
        ("x.txt", "is not a log file"),
    ],
)
def test_file_that_is_not_a_log_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, sentence: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.txt").touch()
    assert main(["log", "verify", str(tmp_path / name)]) == 1
    assert sentence in capsys.readouterr().err
