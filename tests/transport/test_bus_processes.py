"""The bus between processes that are forked, killed and stopped, as a broker's are."""

import os
import signal
import subprocess
import sys

import pytest

from kafkalite.protocol.schemas.bus import FENCE, HELLO, WELCOME

HEAD = """
import os, sys
from pathlib import Path
from kafkalite.clock import SystemClock
from kafkalite.protocol.schemas.bus import HELLO, WELCOME
from kafkalite.transport.bus import BusClient, BusServer
from kafkalite.transport.reactor import Reactor
path = Path(sys.argv[1])

def welcomes(reactor):
    def answer(identity, message):
        offset = message.fields["image_offset"]
        said = WELCOME(image_offset=offset, heartbeat_ms=os.getpid(), incarnation=1)
        assert server.send(identity, said)
    server = BusServer(reactor, path, answer)
    return server
"""

SERVER = HEAD + "reactor = Reactor(SystemClock())\nserver = welcomes(reactor)\nreactor.run()\n"

WORKER = (
    HEAD
    + """
reactor = Reactor(SystemClock())
worker = BusClient(reactor, path, sys.argv[2].encode(), lambda message: None)
worker.send(HELLO(image_offset=1))
reactor.run()
"""
)

FORKS = (
    HEAD
    + """
# As the launcher does: all is loaded, no context is made, then forks.
children = []
for is_server in (True, False, False):
    pid = os.fork()
    if pid:
        children.append(pid)
        continue
    reactor = Reactor(SystemClock())
    heard = []
    if is_server:
        def answer(identity, message):
            heard.append(identity)
            offset = message.fields["image_offset"]
            assert end.send(identity, WELCOME(image_offset=offset, heartbeat_ms=1, incarnation=1))
        end = BusServer(reactor, path, answer)
        while len(set(heard)) < 2:
            reactor.tick(50)
        for _ in range(10):
            reactor.tick(20)  # what it has said is on its way
    else:
        end = BusClient(reactor, path, b"%d.5" % len(children), heard.append)
        end.send(HELLO(image_offset=len(children)))
        while not heard:
            reactor.tick(50)
        assert heard[0].fields["image_offset"] == len(children)
    end.close()
    reactor.close()
    assert os.listdir("/proc/self/task") == [str(os.getpid())]
    os._exit(0)
codes = [os.waitpid(pid, 0)[1] for pid in children]
assert os.listdir("/proc/self/task") == [str(os.getpid())], "the launcher has a thread"
assert not path.exists()
print(*codes)
"""
)


@pytest.fixture
def run(bus):
    """Return a function that runs processes on the bus; those that remain are killed."""
    processes = []

    def start(code, *arguments):
        command = [sys.executable, "-c", code, str(bus.path), *arguments]
        processes.append(subprocess.Popen(command))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


def hello(number):
    return HELLO(image_offset=number)


def test_each_fork_has_its_own_context(tmp_path):
    command = [sys.executable, "-c", FORKS, str(tmp_path / "bus")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout.split(), ended.stderr) == (0, ["0", "0", "0"], "")


def test_worker_reconnects_to_each_new_supervisor(bus, run):
    worker = bus.client((1, 5))
    pids = []
    for number in range(3):
        supervisor = run(SERVER)
        bus.until(lambda: worker.connected)
        worker.send(hello(number))
        bus.until(lambda: bus.received)
        welcome = bus.messages[-1]
        bus.received.clear()
        assert welcome.fields["image_offset"] == number
        pids.append(welcome.fields["heartbeat_ms"])
        supervisor.kill()
        supervisor.wait()
        bus.until(lambda: not worker.connected)
        assert bus.path.is_socket()  # the next server replaces it
    assert len(set(pids)) == 3
    assert bus.changes == [True, False] * 3


def test_killed_worker_is_replaced_by_a_peer_of_the_next_incarnation(bus, run):
    server = bus.server()
    first = run(WORKER, "1.5")
    bus.until(lambda: bus.received)
    assert server.send(b"1.5", FENCE(node_id=1, incarnation=5))
    first.kill()
    first.wait()
    bus.until(lambda: not server.send(b"1.5", FENCE(node_id=1, incarnation=5)))
    run(WORKER, "1.6")
    bus.until(lambda: len(bus.received) == 2)
    assert [identity for identity, _ in bus.received] == [b"1.5", b"1.6"]
    assert not server.send(b"1.5", FENCE(node_id=1, incarnation=5))
    assert server.send(b"1.6", FENCE(node_id=1, incarnation=6))


def test_stopped_worker_does_not_delay_others(bus, run):
    server = bus.server()
    stopped, other = run(WORKER, "1.5"), bus.client((2, 5))
    bus.until(lambda: bus.received)
    os.kill(stopped.pid, signal.SIGSTOP)
    large = WELCOME(image_offset=1, heartbeat_ms=1, incarnation=1)
    sent = 0
    while server.send(b"1.5", large):
        sent += 1
        assert sent < 100_000, "its queue has no end"
    other.send(hello(2))
    bus.until(lambda: len(bus.received) == 2)
    assert server.send(b"2.5", large)
    bus.until(lambda: bus.messages[-1] == large)
    os.kill(stopped.pid, signal.SIGKILL)
    stopped.wait()
    bus.received.clear()
    assert other.send(hello(3))
    bus.until(lambda: bus.received)


def test_resumed_supervisor_receives_messages_sent_meanwhile(bus, run):
    supervisor, worker = run(SERVER), bus.client((1, 5))
    bus.until(lambda: worker.connected)
    os.kill(supervisor.pid, signal.SIGSTOP)
    for number in range(100):
        assert worker.send(hello(number))
    bus.reactor.tick(20)
    assert not bus.received
    os.kill(supervisor.pid, signal.SIGCONT)
    bus.until(lambda: len(bus.received) == 100)
    offsets = [message.fields["image_offset"] for message in bus.messages]
    assert offsets == list(range(100))
