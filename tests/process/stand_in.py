"""A broker with stand-in nodes that only respond, for tests of the launcher alone.

    python -m tests.process.stand_in '{"listen": "127.0.0.1:0", "data": …, "workers": 2, …}'

The launcher is the real one.  Its nodes are controlled by files beside the data directory:

    script/node-2      words for the next starts of node 2: die, refuse, stay (after it ends), …
    script/say         frames the supervisor sends to the launcher, in hexadecimal, a line each
    heard              messages to the supervisor, a line of JSON each
    lives              "node pid incarnation event", a line each
    company            the nodes known to a supervisor at its start, a line each
"""

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from kafkalite.clock import SystemClock
from kafkalite.errors import Refusal
from kafkalite.process import launcher
from kafkalite.process.loop import handle_signals
from kafkalite.process.nodes import child_setup
from kafkalite.process.options import Options
from kafkalite.protocol.schemas.bus import DESIRED_NODES, read_frame, write_frame
from kafkalite.storage.files.disk import WriteBackFailed
from kafkalite.transport.reactor import Reactor

LOOK_MS = 5


def serve(connection, frame):
    """Respond with an empty ApiVersions."""
    return [bytes(frame[4:8]) + bytes(6)]


def worker(spec):
    """Run a node that responds until it is stopped."""
    return run_child(spec, Reactor(SystemClock()))


def supervisor(spec):
    """Run a node that responds, and sends the launcher the frames that the test gives it."""
    reactor = Reactor(SystemClock())
    place = spec.data.parent
    said = 0
    with (place / "company").open("a") as file:
        file.write(f"{sorted(spec.nodes)}\n")

    def hear():
        with contextlib.suppress(BlockingIOError):
            while frame := spec.control_socket.recv(1 << 20):
                told = read_frame(frame).fields
                with (place / "heard").open("a") as file:
                    file.write(json.dumps(told) + "\n")
            reactor.unwatch(spec.control_socket.fileno())

    def send_frames():
        nonlocal said
        with contextlib.suppress(FileNotFoundError):
            lines = (place / "script" / "say").read_text().split("\n")[:-1]
            for line in lines[said:]:
                spec.control_socket.send(bytes.fromhex(line))
            said = len(lines)
        reactor.call_later(LOOK_MS, send_frames)

    if not (place / "script" / "say").exists() and not (place / "script" / "mute").exists():
        node_ids = [node_id for node_id in spec.nodes if node_id]
        spec.control_socket.send(write_frame(DESIRED_NODES(node_ids=node_ids, dedicated=[])))
    reactor.watch(spec.control_socket.fileno(), hear)
    send_frames()
    return run_child(spec, reactor)


def run_child(spec, reactor):
    """Run the part that both kinds of nodes share."""
    place = spec.data.parent

    def note(event):
        with (place / "lives").open("a") as file:
            file.write(f"{spec.node_id} {os.getpid()} {spec.incarnation} {event}\n")

    note("born")
    script = place / "script" / f"node-{spec.node_id}"
    words = script.read_text().split() if script.exists() else []
    if "orphan" in words:
        child_setup.libc.prctl(child_setup.PR_SET_PDEATHSIG, 0, 0, 0, 0)
    if "die" in words:
        return 3
    if "refuse" in words:
        raise Refusal(f"node {spec.node_id} has seen enough")
    if "fault" in words:
        raise ValueError("a fault that was planted")
    handle_signals(reactor, lambda _: reactor.stop(), signal.SIGTERM)
    while "wait" in words:
        time.sleep(0.005)
        words = script.read_text().split()
    reactor.listen(spec.listener, serve)
    reactor.run()
    note("ending")
    reactor.close()
    while "linger" in words:
        time.sleep(0.005)
        words = script.read_text().split()
    if "unflushed" in words:
        raise WriteBackFailed("a flush failure that was planted")
    note("ended")
    return 0


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    for name in ("data", "ready_file", "config"):
        if name in options:
            options[name] = Path(options[name])
    if (options["data"].parent / "script" / "broken").exists():
        raise ImportError("the new code is broken")
    try:
        sys.exit(launcher.start(Options(**options), mains=launcher.NodeMains(supervisor, worker)))
    except Refusal as refusal:
        sys.exit(f"kafkalite: {refusal}")
