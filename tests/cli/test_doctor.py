"""kafkalite doctor: each problem it reports, created for real or as nearly as possible."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from kafkalite import metrics
from kafkalite.cli import doctor, main
from kafkalite.metrics import GAUGE, Family
from kafkalite.process import run_directory
from kafkalite.testing import Broker
from tests.process.waiting import until

EXT = Path(__file__).parents[2] / "ext"


def examined(directory, listen="127.0.0.1:0"):
    """Return the findings, by subject."""
    return {each.what: each for each in doctor.examined(directory, listen, None)}


def test_new_data_directory_has_no_findings(tmp_path, capsys):
    assert main(["doctor", "--data", str(tmp_path / "new"), "--listen", "127.0.0.1:0"]) == 0
    result = capsys.readouterr().out
    assert "wrong" not in result and "will be created" in result
    assert not (tmp_path / "new").exists()


def test_json_findings_have_levels(tmp_path, capsys):
    assert main(["doctor", "--data", str(tmp_path), "--listen", "127.0.0.1:0", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["data"] == str(tmp_path)
    assert {each["level"] for each in result["findings"]} <= {"ok", "warning"}


def test_doctor_leaves_no_files(tmp_path):
    examined(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", [path.stem for path in EXT.glob("*/*.pyx")])
def test_missing_compiled_module_is_named(module, monkeypatch):
    monkeypatch.setitem(sys.modules, f"kafkalite._ext.{module}", None)
    finding = doctor.software()
    assert (finding.level, finding.found.split()[-1]) == ("wrong", module)


def test_port_in_use_is_wrong_and_names_the_process(tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["doctor", "--data", str(tmp_path), "--listen", f"127.0.0.1:{port}"]
        assert main(words) == 1
    result = capsys.readouterr().out
    assert f"port {port}" in result and f"(process {os.getpid()})" in result
    assert "choose another port with --listen" in result


def test_holder_of_a_port_is_found_despite_a_closed_descriptor(tmp_path):
    hole = os.open(tmp_path, os.O_RDONLY)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        os.close(hole)  # listing our descriptors opens one with this number, closed by then
        assert f"(process {os.getpid()})" in doctor.holder(taken.getsockname()[1])


def test_port_in_the_ephemeral_range_is_a_warning(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as given:
        port = given.getsockname()[1]
    assert examined(tmp_path, f"127.0.0.1:{port}")["port range"].level == "warning"
    assert "port range" not in examined(tmp_path, "127.0.0.1:1024")


@pytest.mark.parametrize(("limit", "level"), [(100, "wrong"), (1_000, "warning"), (10_000, "ok")])
def test_descriptor_limit_sets_the_level(limit, level, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (100, limit))
    assert doctor.descriptors().level == level


def test_unset_clock_is_wrong_and_backward_clock_a_warning(tmp_path, monkeypatch):
    log = tmp_path / "t-0" / "0.log"
    log.parent.mkdir()
    log.touch()
    assert doctor.clock(tmp_path).level == "ok"
    os.utime(log, (time.time() + 3600,) * 2)
    assert doctor.clock(tmp_path).level == "warning"
    monkeypatch.setattr(time, "time", lambda: 1_000.0)
    assert doctor.clock(tmp_path).level == "wrong"


def test_file_in_place_of_the_data_directory_is_wrong(tmp_path):
    (tmp_path / "file").touch()
    assert doctor.owner(tmp_path / "file").level == "wrong"


def test_shared_data_directory_is_a_warning(tmp_path, monkeypatch):
    tmp_path.chmod(0o777)
    assert "chmod go-w" in doctor.owner(tmp_path).advice
    tmp_path.chmod(0o700)
    assert doctor.owner(tmp_path).level == "ok"
    monkeypatch.setattr(os, "getuid", lambda: 12_345)
    assert doctor.owner(tmp_path).level == "warning"


def test_full_disk_is_wrong(tmp_path, monkeypatch):
    real = os.statvfs(tmp_path)

    class Full:
        f_frsize, f_blocks, f_bavail, f_files, f_favail = 4096, real.f_blocks, 10, 100, 10

    monkeypatch.setattr(os, "statvfs", lambda place: Full)
    assert doctor.free_space(tmp_path).level == "wrong"


@pytest.mark.parametrize(("kind", "level"), [("nfs4", "warning"), ("tmpfs", "warning")])
def test_volatile_file_system_is_a_warning(kind, level, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "file_system", lambda place: kind)
    assert doctor.file_system_check(tmp_path).level == level


def test_file_system_type_is_read_from_the_kernel():
    assert doctor.file_system("/proc") == "proc"


def test_slow_disk_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "flush_time_s", lambda descriptor: 0.5)
    found = doctor.flush_time(tmp_path)
    assert found.level == "warning" and "durability=fsync" in found.advice


def test_directory_that_is_not_writable_has_no_flush_time(tmp_path):
    assert doctor.flush_time(Path("/proc/self")).level == "wrong"


def test_stray_directories_are_named(tmp_path):
    (tmp_path / "nodes" / "1" / "old-0.abc-stray").mkdir(parents=True)
    (found,) = doctor.stray_files(tmp_path)
    assert found.level == "warning" and "old-0.abc-stray" in found.found


def test_run_directory_open_to_others_is_wrong(monkeypatch):
    # A short path, because sockets have their paths there.
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        check_run_directory(Path(directory), monkeypatch)


def check_run_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert doctor.run_directory_check().level == "ok"
    (tmp_path / "kafkalite").mkdir(mode=0o755)
    assert doctor.run_directory_check().level == "wrong"


def test_running_stopped_and_killed_brokers_are_reported(capsys):
    with Broker() as broker:
        words = ["doctor", "--data", str(broker.data), "--json"]
        assert main(words) == 0
        result = {each["what"]: each for each in json.loads(capsys.readouterr().out)["findings"]}
        assert "responds" in result["node 0"]["found"]
        assert "in use by this broker" in result["ports"]["found"]
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            assert main(words) == 1
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        result = {each["what"]: each for each in json.loads(capsys.readouterr().out)["findings"]}
        assert result["node 0"]["level"] == "wrong"
        broker.kill()
        until(lambda: "unclean" in examined(broker.data)["last shutdown"].found)


def test_errors_in_the_log_are_repeated(tmp_path):
    line = "2026-01-01 12:00:00,000 {} node-1 kafkalite.storage: {}\n"
    log = line.format("INFO", "well") + line.format("ERROR", "flights-0 is damaged")
    (tmp_path / "kafkalite.log").write_text(log)
    found = examined(tmp_path)["log"]
    assert found.level == "warning" and "flights-0 is damaged" in found.advice


@pytest.mark.parametrize(("since_ms", "level"), [(30_000, "ok"), (3_600_000, "warning")])
def test_cleaner_that_has_not_run_for_long_is_a_warning(monkeypatch, since_ms, level):
    families = [
        Family(name, GAUGE, "", [({}, value)])
        for name, value in ((doctor.SINCE_LAST_RUN, since_ms), (doctor.DEAD_THREADS, 0))
    ]
    page = SimpleNamespace(node_id=1, families=families)
    monkeypatch.setattr(metrics, "read_pages", lambda *_: [page])
    monkeypatch.setattr(run_directory, "bus_path", lambda _: Path("/run/bus"))
    (found,) = doctor.compaction({})
    assert found.level == level
    assert level == "ok" or "no cleaner has looked for dirty logs for 60 min" in found.found
