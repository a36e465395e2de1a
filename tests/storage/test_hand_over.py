"""A log moves from node to node: nothing is lost, nothing is there twice, and little is read again.

Nodes are managers of one data directory; a crash is a manager that is never closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalite.config import topic as keys
from kafkalite.ids import NO_ID
from kafkalite.storage import layout
from kafkalite.storage.log import Log
from kafkalite.storage.log_manager import LogManager
from kafkalite.storage.recovery import Recovery
from tests.storage.making import TOPIC_ID, batch, manager, settings, values_of

OTHER_ID = bytes(reversed(TOPIC_ID))
T = ("t", 0)


class Nodes:
    """The managers of some nodes, opened when first asked for."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.leader = 1
        self.settings = settings()
        self._open: dict[int, LogManager] = {}

    def __getitem__(self, node_id: int) -> LogManager:
        if node_id not in self._open:
            logs = self._open[node_id] = manager(self.data, node_id=node_id)
            logs.hand_over_misplaced(self.belongs)
            logs.load(lambda topic: self.settings)
        return self._open[node_id]

    def belongs(self, topic: str, index: int, topic_id: bytes) -> Path | None:
        return self.path(self.leader) if topic_id in (TOPIC_ID, NO_ID) else None

    def path(self, node_id: int) -> Path:
        return layout.node_directory(self.data, node_id)

    def create(self, node_id: int = 1) -> Log:
        self.leader = node_id
        return self[node_id].create("t", TOPIC_ID, 0, self.settings)

    def move(self, to: int) -> Log:
        """As the image says from now on: the leader hands over, and the new one takes up."""
        self[self.leader].hand_over(self[self.leader].logs[T], self.path(to))
        self.leader = to
        return self.found()

    def found(self) -> Log:
        found = self[self.leader].find("t", 0, TOPIC_ID, self.settings)
        assert found is not None
        return found

    def crash(self, *node_ids: int) -> None:
        """SIGKILL: these go without a word, all of them if none is named."""
        for node_id in node_ids or list(self._open):
            for log in self._open.pop(node_id).logs.values():
                log.release()

    def names(self, node_id: int) -> list[str]:
        return sorted(path.name for path in self.path(node_id).glob("t*"))


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    found = Nodes(tmp_path)
    yield found
    found.crash()


def no_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recovery, "recover", lambda *_: pytest.fail("a known log was scanned"))


@pytest.mark.parametrize("durability", ["os", "interval", "fsync"])
def test_a_log_goes_from_node_to_node_without_being_scanned(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    no_scan(monkeypatch)
    nodes.settings = settings({keys.DURABILITY: durability, keys.SEGMENT_BYTES: 400})
    log = nodes.create(1)
    expected = []
    for epoch, to in enumerate((2, 3, 0, 1, 2)):
        for _ in range(7):
            value = b"%d" % len(expected)
            expected.append((len(expected), value))
            log.append(batch(value), epoch)
        log = nodes.move(to)
        assert values_of(log) == expected
        assert log.end_offset == len(expected)
        assert log.durable_offset == (0 if durability == "os" else log.end_offset)
        assert [nodes.names(node_id) for node_id in range(4) if node_id != to] == [[]] * 3
        assert nodes.names(to) == ["t-0"]
    assert log.leader_epochs.starts == [0, 7, 14, 21, 28]
