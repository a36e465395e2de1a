"""Log managers of several nodes on one data directory; the test sets the leader of t-0, or several
replicas of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from kafkalite.clock import ManualClock
from kafkalite.ids import NO_ID
from kafkalite.storage.files import layout
from kafkalite.storage.files.disk import Disk
from kafkalite.storage.log.log import Log
from kafkalite.storage.manager.log_manager import LogManager
from tests.storage.factories import TOPIC_ID, batch, manager, settings

T = ("t", 0)


class Nodes:
    """The managers, opened at first use."""

    def __init__(self, data: Path, disk: Disk | None = None) -> None:
        self.data = data
        self.leader = 1
        self.replicas: tuple[int, ...] = ()
        """The replicas of t-0; empty if the leader is the only one."""
        self.settings = settings()
        self.clock = ManualClock()
        self.disk = disk
        self._open: dict[int, LogManager] = {}

    def __getitem__(self, node_id: int) -> LogManager:
        if node_id not in self._open:
            logs = manager(self.data, self.clock, self.disk, node_id)
            logs.transfer_foreign_logs(
                partial(self.belongs_at, node_id), is_replicated=self.is_replicated
            )
            logs.load(lambda topic: self.settings)
            logs.set_strays()
            self._open[node_id] = logs
        return self._open[node_id]

    def belongs(self, topic: str, index: int, topic_id: bytes) -> Path | None:
        """Return the directory of the leader, as the metadata image names it."""
        if (topic, index) == T and topic_id in (TOPIC_ID, NO_ID):
            return self.path(self.leader)
        return None

    def belongs_at(self, node_id: int, topic: str, index: int, topic_id: bytes) -> Path | None:
        """Return where a log in a node's directory belongs."""
        if not self.is_replicated(topic, index, topic_id):
            return self.belongs(topic, index, topic_id)
        return self.path(node_id) if node_id in self.replicas else None

    def is_replicated(self, topic: str, index: int, topic_id: bytes) -> bool:
        """Return whether a partition has several replicas."""
        return bool(self.replicas) and (topic, index) == T and topic_id in (TOPIC_ID, NO_ID)

    def create_replica(self, node_id: int, *values: bytes) -> Log:
        """Create a replica of t-0 at a node, with records that are flushed and checkpointed."""
        log = self[node_id].create("t", TOPIC_ID, 0, self.settings)
        log.is_replicated = True
        for value in values:
            log.append(batch(value), 0)
        log.flush()
        self[node_id].checkpoint()
        return log

    def begin(self, node_id: int) -> None:
        """Open a node's manager."""
        assert self[node_id].data == self.path(node_id)

    def path(self, node_id: int) -> Path:
        return layout.node_directory(self.data, node_id)

    def create(self, node_id: int = 1) -> Log:
        self.leader = node_id
        return self[node_id].create("t", TOPIC_ID, 0, self.settings)

    def send(self, to: int) -> None:
        """Change the leader and have the previous leader transfer the partition."""
        before = self[self.leader]
        self.leader = to
        before.transfer(before.logs[T], self.path(to))

    def move(self, to: int) -> Log:
        """Transfer the partition and open it at the new leader."""
        self.send(to)
        return self.found()

    def found(self) -> Log:
        found = self[self.leader].open_transferred("t", 0, TOPIC_ID, self.settings)
        assert found is not None
        return found

    def crash(self, *node_ids: int) -> None:
        """Crash these nodes, or all, as SIGKILL does: nothing is closed or written."""
        for node_id in node_ids or list(self._open):
            for log in self._open.pop(node_id).logs.values():
                log.release()

    def close(self, *node_ids: int) -> None:
        for node_id in node_ids or list(self._open):
            self._open.pop(node_id).close()

    def names(self, node_id: int) -> list[str]:
        return sorted(path.name for path in self.path(node_id).glob("t*"))
