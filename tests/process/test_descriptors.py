"""A launcher without free descriptors: a node that dies is restarted once there are some."""

import os
import resource
import signal

import pytest

from tests.process.waiting import until


@pytest.mark.parametrize("node_id", [0, 1])
@pytest.mark.parametrize("spare", range(6))
def test_node_is_restarted_once_descriptors_are_available(harness, node_id, spare):
    harness.start(workers=2)
    pid = harness.launcher.pid
    until(lambda: " Broker is ready. " in harness.log, harness.launcher)  # its log file stays open
    before = os.listdir(f"/proc/{pid}/fd")
    enough = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    victim = harness.pid(node_id)
    born = len(harness.lives("born"))
    harness.watch()
    few = max(map(int, before)) - 2 + spare
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (few, enough[1]))
    os.kill(victim, signal.SIGKILL)

    def is_tried():
        failed = "cannot be forked" in harness.log or "cannot open a socket" in harness.log
        return failed or len(harness.lives("born")) > born

    until(is_tried, harness.launcher)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, enough)
    for _, child, _ in harness.lives("born")[born:]:
        os.kill(child, signal.SIGKILL)  # it has inherited the limit
    harness.wait_restarted(node_id, victim)
    until(lambda: len(harness.status()["nodes"]) == 3, harness.launcher)
    until(lambda: len(os.listdir(f"/proc/{pid}/fd")) <= len(before), harness.launcher)
