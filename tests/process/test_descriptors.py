"""A launcher without free descriptors: a node that dies is restarted once there are some."""

import os
import resource
import signal

import pytest

from tests.process.waiting import until


@pytest.mark.parametrize("node_id", [0, 1])
@pytest.mark.parametrize("spare", range(6))
def test_without_descriptors_a_node_is_back_when_there_are_some(stage, node_id, spare):
    stage.start(workers=2)
    pid = stage.launcher.pid
    until(lambda: " Broker is ready. " in stage.log, stage.launcher)  # its log file stays open
    before = os.listdir(f"/proc/{pid}/fd")
    enough = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    victim = stage.pid(node_id)
    born = len(stage.lives("born"))
    stage.watch()
    few = max(map(int, before)) - 2 + spare
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (few, enough[1]))
    os.kill(victim, signal.SIGKILL)
    until(lambda: len(stage.lives("born")) > born or "cannot be" in stage.log, stage.launcher)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, enough)
    for _, child, _ in stage.lives("born")[born:]:
        os.kill(child, signal.SIGKILL)  # it has inherited the limit
    stage.renewed(node_id, victim)
    until(lambda: len(stage.status()["nodes"]) == 3, stage.launcher)
    until(lambda: len(os.listdir(f"/proc/{pid}/fd")) <= len(before), stage.launcher)
