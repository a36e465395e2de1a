"""kafkalite.testing: a broker for a test, of which nothing remains however the test ends."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from kafkalite import Producer, testing
from kafkalite.errors import Refusal, TopicAlreadyExists
from kafkalite.process.log_file import LOG_FILE
from kafkalite.process.status.ready import STATUS_FILE
from kafkalite.testing import DIRECTORY_PREFIX, Broker, remove_abandoned
from tests.process.waiting import is_gone, until

OWNER = """
import sys
from kafkalite.testing import Broker
broker = Broker(workers=int(sys.argv[1]))
broker.start()
print(broker.pid, broker.directory, flush=True)
sys.stdin.read()
"""


def test_exit_of_the_block_ends_and_removes_the_broker():
    with Broker() as broker:
        pid, directory = broker.pid, broker.directory
        assert broker.data.is_dir() and not is_gone(pid)
    assert is_gone(pid)
    assert not directory.exists()


def test_killed_and_restarted_broker_keeps_data_and_port():
    with Broker() as broker:
        topic, bootstrap, pid = broker.topic(partitions=3), broker.bootstrap, broker.pid
        broker.kill()
        assert is_gone(pid)
        broker.restart()
        assert broker.bootstrap == bootstrap
        with pytest.raises(TopicAlreadyExists):
            broker.topic(name=topic)
        broker.restart()
        assert broker.bootstrap == bootstrap
        assert broker.topic() != topic


def test_node_whose_process_has_ended_is_killed_when_it_is_ready_again(monkeypatch):
    killed, kill = [], os.kill
    with Broker(workers=1) as broker:
        (ended,) = [node["pid"] for node in broker.nodes if node["id"] == 1]
        os.kill(broker.pid, signal.SIGSTOP)  # so that the status goes on naming the process
        os.kill(ended, signal.SIGKILL)
        until(lambda: is_gone(ended))
        timer = threading.Timer(0.2, os.kill, (broker.pid, signal.SIGCONT))
        timer.start()
        monkeypatch.setattr(os, "kill", lambda pid, number: [killed.append(pid), kill(pid, number)])
        broker.kill(1)
        monkeypatch.undo()
        timer.join()
    assert killed and ended not in killed


FORKED = """
import os, sys
from kafkalite.testing import Broker
with Broker() as broker:
    child = os.fork()
    if not child:
        for refused in (broker.stop, broker.kill, broker.restart):
            try:
                refused()
            except RuntimeError as error:
                assert "belongs to process" in str(error)
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert broker.data.is_dir()
    broker.topic()
    broker.restart()
"""


def test_broker_outlives_a_forked_child_that_exits():
    ended = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("name", ["bootstrap", "pid", "nodes"])
def test_attribute_before_start_raises_runtime_error(name):
    with pytest.raises(RuntimeError, match=r"call start\(\)"):
        getattr(Broker(), name)


@pytest.mark.parametrize("is_closed", [False, True], ids=["before start", "after close"])
def test_data_before_start_is_not_the_working_directory(tmp_path, monkeypatch, is_closed):
    killed = []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    status = {"nodes": [{"id": 1, "pid": 4711}]}
    (tmp_path / "data" / STATUS_FILE).write_text(json.dumps(status))
    broker = Broker()
    if is_closed:
        with broker:
            pass
    # Only now: Popen uses os.kill too, to end the broker.
    monkeypatch.setattr(testing.os, "kill", lambda pid, number: killed.append(pid))
    for use in (lambda: broker.data, lambda: broker.status, lambda: broker.kill(1)):
        with pytest.raises(RuntimeError, match="no data before start"):
            use()
    assert not killed


def test_configuration_values_may_be_numbers_and_booleans():
    config = {"num.partitions": 3, "auto.create.topics.enable": False}
    with Broker(config=config) as broker:
        name = broker.topic(-1, config={"retention.ms": 5_000, "preallocate": False})
        with Producer(broker.bootstrap) as producer:
            assert producer.partitions_for(name) == 3


def test_failed_start_raises_refusal_and_removes_its_files():
    broker = Broker(config={"no.such.key": "1"})
    with pytest.raises(Refusal, match=r"no\.such\.key"):
        broker.start()
    assert not broker.directory.name


@pytest.fixture(params=[0, 2], ids=["one process", "two workers"])
def owner(request):
    """Yield a process that has started a Broker, with the broker's pid and directory."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(request.param)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    pid, directory = process.stdout.readline().split()
    yield process, int(pid), Path(directory)
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_kill_of_the_test_process_removes_the_broker(owner):
    process, pid, directory = owner
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: is_gone(pid) and not directory.exists())


def test_signal_and_end_of_the_test_process_remove_the_broker(owner):
    process, pid, directory = owner
    os.kill(pid, signal.SIGSTOP)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    os.kill(pid, signal.SIGTERM)
    os.kill(pid, signal.SIGCONT)
    until(lambda: is_gone(pid) and not directory.exists())


def test_end_of_the_test_process_removes_the_broker(owner):
    process, pid, directory = owner
    process.stdin.close()
    process.wait(timeout=30)
    assert is_gone(pid) and not directory.exists()


def test_abandoned_directory_is_removed_by_the_next_broker(owner):
    process, pid, directory = owner
    os.kill(pid, signal.SIGSTOP)
    os.kill(process.pid, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    process.wait()
    until(lambda: is_gone(pid))
    assert directory.exists() and directory.name.startswith(DIRECTORY_PREFIX)
    with Broker():
        assert not directory.exists()


def test_fixtures_share_a_broker_with_one_topic_per_test(tmp_path):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["kafkalite.testing"]\n')
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "seen = []\n"
        "def test_one(kafka_broker, kafka_topic):\n"
        "    seen.append((kafka_broker.pid, kafka_topic))\n"
        "@pytest.mark.parametrize('kafka_topic', [6], indirect=True)\n"
        "def test_two(kafka_broker, kafka_topic):\n"
        "    seen.append((kafka_broker.pid, kafka_topic))\n"
        "    (one, two) = seen\n"
        "    assert one[0] == two[0] and one[1] != two[1]\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout


def test_remove_abandoned_ignores_a_directory_already_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    name = f"{DIRECTORY_PREFIX}1-0-gone"
    monkeypatch.setattr(Path, "glob", lambda *_: iter([tmp_path / name]))
    remove_abandoned()
    abandoned = tmp_path / name
    abandoned.mkdir()
    remove_abandoned()
    assert not abandoned.exists()


def test_slow_ticks_of_a_broker_are_read_from_its_log():
    line = "2026 WARNING node-0 kafkalite.transport Event loop was not free for 90 ms, mostly"
    with Broker() as broker:
        with (broker.data / LOG_FILE).open("a") as log:
            for cpu_ms in (10, 70):
                log.write(f"{line} because of X. cause='X' tick_ms=90 cpu_ms={cpu_ms} step_ms=9\n")
        (slow,) = broker.slow_ticks(cpu_ms=60)
        assert "cpu_ms=70" in slow
        assert len(broker.slow_ticks(cpu_ms=10)) >= 2


def test_kill_waits_for_a_node_that_is_starting(monkeypatch):
    with Broker(workers=1) as broker:
        whole = broker.status
        (pid,) = [node["pid"] for node in whole["nodes"] if node["id"] == 1]
        without = whole | {"nodes": [node for node in whole["nodes"] if node["id"] != 1]}
        told = [without, without, whole]
        with monkeypatch.context() as context:
            context.setattr(Broker, "status", property(lambda _: told.pop(0)))
            broker.kill(1)
        until(lambda: is_gone(pid))
        with pytest.raises(ValueError, match=r"no node 7, but \[0, 1\]"):
            broker.kill(7)
