"""`kafkalite start`, `status` and `stop`, from the command line."""

import errno
import json
import os
import resource
import shutil
import signal
import socket
import struct
import sys
from pathlib import Path

import pytest

from kafkalite.config.broker import LISTENERS, NUM_PARTITIONS
from kafkalite.config.topic import DURABILITY, MAX_MESSAGE_BYTES
from kafkalite.errors import Refusal
from kafkalite.process import options
from kafkalite.process.options import Options
from kafkalite.process.single import SingleProcessBroker
from kafkalite.process.status import banner
from kafkalite.process.status.ready import default_data_directory
from kafkalite.storage.manager.log_directories import LogDirectories


def api_versions(port):
    """Return the error code of an ApiVersions request over a new connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(struct.pack(">ihhih", 10, 18, 0, 7, -1))
        size, correlation_id, error_code = struct.unpack(">iih", client.recv(10))
    assert correlation_id == 7
    return error_code


def is_one_error_line(done, *words, code=1):
    """Assert the form of a refusal: no output, one line on stderr, no traceback."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("kafkalite: ") and done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert str(word) in done.stderr
    return True


def test_ready_file_describes_the_started_broker(start, kafkalite):
    broker = start()
    port = broker.ready["nodes"][0]["port"]
    assert broker.ready == {
        "bootstrap": f"127.0.0.1:{port}",
        "cluster_id": broker.ready["cluster_id"],
        "data": str(broker.data),
        "durability": "os",
        "launcher_pid": broker.process.pid,
        "nodes": [
            {
                "id": 0,
                "role": "supervisor",
                "host": "127.0.0.1",
                "port": port,
                "pid": broker.process.pid,
            }
        ],
        "restarts": 0,
    }
    assert len(broker.ready["cluster_id"]) == 22
    assert api_versions(port) == 0
    status = kafkalite("status", "--data", broker.data, "--json")
    replicas = {"offline": 0, "under_min_isr": 0, "under_replicated": 0}
    whole = {**broker.ready, "replicas": replicas}
    assert (json.loads(status.stdout), status.returncode) == (whole, 0)
    told = kafkalite("status", "--data", broker.data)
    assert broker.ready["bootstrap"] in told.stdout


def test_sigterm_ends_cleanly_after_the_banner(start, kafkalite):
    broker = start()
    printed, code = broker.end(signal.SIGTERM)
    assert code == 0
    assert not broker.ready_file.exists()
    assert is_one_error_line(kafkalite("status", "--data", broker.data), broker.data)
    bootstrap = broker.ready["bootstrap"]
    log_file = broker.data / "kafkalite.log"
    for words in (
        bootstrap,
        broker.data,
        log_file,
        "survives the end of any process",
        f"kcat -b {bootstrap} -L",
        f"kafkalite produce -b {bootstrap}",
        f"kafkalite consume -b {bootstrap}",
        f"kafkalite demo -b {bootstrap}",
    ):
        assert str(words) in printed
    assert "\x1b" not in printed
    assert "has shut down" in log_file.read_text()


def test_banner_includes_warnings_of_the_start(start, kafkalite):
    broker = start()
    kafkalite("topic", "create", "lost", "-b", broker.ready["bootstrap"])
    assert "lost-0" not in broker.end(signal.SIGTERM)[0]  # a busy machine may warn of a slow tick
    shutil.rmtree(broker.data / "lost-0")
    printed, _ = start().end(signal.SIGTERM)
    warning = "  warning     Partition lost-0 cannot be served yet: its directory is missing"
    assert warning in printed


def test_banner_wraps_lines_and_names_a_runnable_command(monkeypatch, tmp_path):
    broken = banner.entry("data", "word " * 20, columns=40).splitlines()
    assert max(map(len, broken)) <= 40
    assert all(line.startswith(" " * 14) for line in broken[1:])
    monkeypatch.setattr(sys, "argv", ["clone/.venv/bin/kafkalite", "start"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert banner.command_name() == "clone/.venv/bin/kafkalite"
    monkeypatch.setattr(sys, "argv", ["clone/kafkalite/__main__.py", "start"])
    assert banner.command_name() == f"{sys.executable} -m kafkalite"
    (tmp_path / "kafkalite").touch(mode=0o755)
    assert banner.command_name() == "kafkalite"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_sigint_and_sighup_end_cleanly(start, number):
    assert start().end(number)[1] == 0


def test_closed_standard_output_does_not_end_the_broker(start):
    reading, writing = os.pipe()
    os.close(reading)
    broker = start(stdout=writing)
    os.close(writing)
    assert api_versions(broker.ready["nodes"][0]["port"]) == 0


def test_ignored_sighup_does_not_end_the_broker(start):
    broker = start(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    os.kill(broker.process.pid, signal.SIGHUP)
    assert api_versions(broker.ready["nodes"][0]["port"]) == 0
    assert broker.end(signal.SIGTERM)[1] == 0


def test_log_directory_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    def failing(path):
        raise OSError(errno.EIO, "Input/output error", str(path / "meta.properties"))

    monkeypatch.setattr("kafkalite.storage.manager.log_directories._read_list", failing)
    settings = options.settings_of(Options())
    with pytest.raises(Refusal, match="Input/output error; if its disk has failed.*--without-dir"):
        options.log_directories(Options(data=tmp_path), settings)


def test_second_signal_exits_at_once(monkeypatch):
    codes = []
    monkeypatch.setattr(os, "_exit", codes.append)
    settings = options.settings_of(Options())
    address = options.listen_address(settings, insecure=False)
    directories = LogDirectories([default_data_directory()])
    broker = SingleProcessBroker(settings, directories, address, ready_file=None)
    broker.exit_on_second_signal(signal.SIGUSR2)
    broker.exit_on_second_signal(signal.SIGTERM)
    assert codes == []
    broker.exit_on_second_signal(signal.SIGTERM)
    assert codes == [1]
    broker.reactor.close()


def test_second_start_on_the_same_data_is_refused(start, kafkalite):
    broker = start()
    second = kafkalite("start", "--listen", "127.0.0.1:0", "--data", broker.data)
    assert is_one_error_line(second, broker.data, "in use")
    assert api_versions(broker.ready["nodes"][0]["port"]) == 0
    status = kafkalite("status", "--data", broker.data, "--json")
    assert json.loads(status.stdout).items() >= broker.ready.items()


def test_killed_broker_is_reported_and_restarts_on_its_data(start, kafkalite):
    broker = start()
    _, code = broker.end(signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert (broker.data / "status.json").exists()
    assert is_one_error_line(kafkalite("status", "--data", broker.data), "no broker runs")
    broker.ready_file.unlink()
    again = start()
    assert again.ready["cluster_id"] == broker.ready["cluster_id"]
    assert api_versions(again.ready["nodes"][0]["port"]) == 0


def test_stop_returns_when_the_broker_has_ended(start, kafkalite):
    broker = start()
    stopped = kafkalite("stop", "--data", broker.data)
    assert stopped.returncode == 0 and broker.ready["bootstrap"] in stopped.stdout
    assert broker.process.wait(timeout=0.5) == 0
    assert is_one_error_line(kafkalite("stop", "--data", broker.data), "nothing to stop")


def test_port_in_use_is_one_error_and_removes_a_stale_ready_file(tmp_path, kafkalite):
    ready_file = tmp_path / "ready.json"
    ready_file.write_text("left by one that was killed")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["start", "--listen", f"127.0.0.1:{port}", "--data", tmp_path / "data"]
        done = kafkalite(*words, "--ready-file", ready_file)
    assert is_one_error_line(done, port, "in use", "--listen")
    assert not ready_file.exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--listen", "0.0.0.0:0"], ["--insecure"]),
        (["--listen", ":0"], ["--insecure"]),
        (["--listen", "127.0.0.1"], ["HOST:PORT", "'127.0.0.1'"]),
        (["--listen", "PLAINTEXT://127.0.0.1:0"], ["HOST:PORT"]),
        (["--listen", "127.0.0.1:99999"], ["65535"]),
        (["--listen", "no such host:0", "--insecure"], ["no such host", "not known"]),
        (["--workers", "10000"], ["workers", "128", "10000"]),
        (["--workers", "-1"], ["workers", "128", "-1"]),
        (["-o", "num.partition=3"], ["num.partition", "num.partitions"]),
        (["-o", "num.partitions=many"], ["num.partitions", "many"]),
        (["--config", "/no/such/file"], ["/no/such/file"]),
        (["--ready-file", "/no/such/directory/ready"], ["/no/such/directory/ready"]),
        (["--ready-file", "/proc"], ["/proc", "ready file"]),
        (["--data", "/proc/kafkalite"], ["/proc/kafkalite", "--data"]),
    ],
)
def test_invalid_start_options_are_one_error_line(flags, words, tmp_path, kafkalite):
    given = ["--listen", "127.0.0.1:0", "--data", tmp_path / "data", *flags]
    assert is_one_error_line(kafkalite("start", *given), *words)


@pytest.mark.parametrize("flag", ["--lisen", "--durability=never", "--workers=few"])
def test_unknown_or_invalid_flag_is_one_error_line(flag, kafkalite):
    assert is_one_error_line(kafkalite("start", flag), "kafkalite start", code=2)


def test_directory_with_other_files_is_refused(tmp_path, kafkalite):
    (tmp_path / "letters.txt").write_text("dear")
    done = kafkalite("start", "--listen", "127.0.0.1:0", "--data", tmp_path)
    assert is_one_error_line(done, tmp_path, "--data")
    assert {path.name for path in tmp_path.iterdir()} <= {"letters.txt", ".lock"}


def test_file_as_data_directory_is_refused(tmp_path, kafkalite):
    (tmp_path / "file").write_text("dear")
    done = kafkalite("start", "--listen", "127.0.0.1:0", "--data", tmp_path / "file")
    assert is_one_error_line(done, tmp_path / "file", "--data")


def test_insecure_flag_allows_listening_on_every_address(start):
    broker = start("--listen", "0.0.0.0:0", "--insecure")
    port = broker.ready["nodes"][0]["port"]
    assert broker.ready["bootstrap"] == f"127.0.0.1:{port}"
    assert api_versions(port) == 0


def test_flags_precede_overrides_and_overrides_the_config_file(tmp_path):
    config = tmp_path / "server.properties"
    config.write_text("num.partitions=2\ndurability=os\nmessage.max.bytes=1234567\n")
    settings = options.settings_of(
        Options(
            config=config,
            overrides={"num.partitions": "3", "durability": "interval"},
            durability="fsync",
            listen="127.0.0.1:19092",
        )
    )
    assert settings[DURABILITY] == "fsync"
    assert settings[LISTENERS] == ("PLAINTEXT://127.0.0.1:19092",)
    assert settings[NUM_PARTITIONS] == 3
    assert settings[MAX_MESSAGE_BYTES] == 1_234_567


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("", False),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
    ],
)
def test_is_loopback_accepts_only_loopback_hosts(host, loopback):
    assert options.is_loopback(host) is loopback


def test_default_data_directory_follows_xdg_data_home(monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", "/some/where")
    assert str(default_data_directory()) == "/some/where/kafkalite"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert str(default_data_directory()) == "/home/ada/.local/share/kafkalite"


def test_start_raises_the_descriptor_limit_in_little_processor_time(start):
    hard = min(5000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    broker = start(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard)))
    process = Path(f"/proc/{broker.process.pid}")
    limits = (process / "limits").read_text()
    (line,) = [line for line in limits.splitlines() if line.startswith("Max open files")]
    assert line.split()[3] == str(hard)
    stat = (process / "stat").read_text().rpartition(")")[2].split()
    used_s = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
    assert used_s < 2, "CPU time until it was ready"


def test_files_are_accessible_to_the_user_only(start):
    broker = start()
    for path in [broker.data, broker.ready_file, *broker.data.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path
