"""Coordinators on logs that the log cleaner cleans: the same state after it, and after a kill at
any step of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalite.broker.controller.compaction_demand import CompactionDemand
from kafkalite.config import topic as keys
from kafkalite.storage.files.disk import Disk
from tests.broker.local_harness import LocalNode
from tests.broker.test_cleaning_jobs import Cleaner
from tests.handlers.conftest import InProcess
from tests.handlers.grouping import commit, find, pass_time
from tests.handlers.test_transactional_offsets import TransactionalApp
from tests.handlers.transacting import init

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
GROUPS = ("g", "in-transactions", "pending")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[LocalNode]:
    made = LocalNode(tmp_path / "data", **{"log.cleaner.dedupe.buffer.size": str(1 << 20)})
    made.create("t", 2)
    find(made)
    find(made, key_type=1)
    yield made
    made.remove()


def topic_id(host: InProcess, name: str) -> bytes:
    topic = host.node.image.topic(name)
    assert topic is not None
    return topic.topic_id


def partition(host: InProcess, name: str) -> Any:
    return host.node.replicas.leader(name, 0)


def state(host: InProcess) -> tuple[Any, Any]:
    """Return what the coordinators know, once they are loaded."""
    host.until(lambda: [*host.node.groups] and [*host.node.transactions])
    (groups,), (transactions,) = host.node.groups, host.node.transactions
    return (
        {name: groups.machine.fetch_offsets(name, None) for name in GROUPS},
        {name: each._replace(last_epoch=-1) for name, each in transactions.machine.transactions()},
    )


def write(host: LocalNode) -> TransactionalApp:
    """Write plain commits, committed and aborted transactions, and one that stays open."""
    app = TransactionalApp(host, 5, "in-transactions")
    for offset in range(6):
        assert commit(host, offset=offset) == 0
        assert app.commit({("t", 0): offset, ("t", 1): offset}) == [0, 0]
        app.end(committed=offset != 5)
        assert init(host, name=f"id-{offset % 2}")[0] == 0
    for name in (OFFSETS, TRANSACTIONS):
        partition(host, name).log.roll()
    pending = TransactionalApp(host, 5, "pending")
    assert pending.commit() == [0]
    pass_time(host, 10)
    return pending


@pytest.mark.parametrize("name", [OFFSETS, TRANSACTIONS])
def test_cleaned_log_is_loaded_with_the_same_state(host: LocalNode, name: str) -> None:
    pending = write(host)
    before, size = state(host), partition(host, name).log.size
    Cleaner(host).clean(topic_id(host, name))
    assert partition(host, name).log.size < size
    assert state(host) == before
    pending.end()
    write(host)
    before = state(host)
    Cleaner(host).clean(topic_id(host, name))
    host.restart()
    assert state(host) == before
    assert partition(host, name).log.config.settings[keys.CLEANUP_POLICY] == ("compact",)


def test_kill_at_any_step_of_cleaning_leaves_the_same_state(
    host: LocalNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(host)
    before = state(host)
    copies: list[Path] = []

    def step(function: Any) -> Any:
        def copied(*arguments: Any) -> None:
            copies.append(tmp_path / f"copy-{len(copies)}")
            shutil.copytree(host.directory, copies[-1], ignore=shutil.ignore_patterns("*.tmp"))
            function(*arguments)

        return copied

    for name in ("rename", "unlink"):
        monkeypatch.setattr(Disk, name, staticmethod(step(getattr(Disk, name))))
    Cleaner(host).clean(topic_id(host, OFFSETS))
    monkeypatch.undo()
    assert len(copies) >= 8
    for directory in copies:
        killed = InProcess(directory)
        assert state(killed) == before, directory
        killed.close()


def test_cleaner_is_demanded_once_an_internal_topic_can_be_cleaned(host: LocalNode) -> None:
    demands = []
    node = host.node
    CompactionDemand(
        node.local_controller, lambda: node.settings, node.replicas, host.reactor,
        lambda: demands.append(1),
    )  # fmt: skip
    write(host)
    for name in (OFFSETS, TRANSACTIONS):
        assert partition(host, name).needs_cleaner
    assert demands == []
    pass_time(host, 2_000)
    assert demands == [1]


def test_small_internal_topics_demand_no_cleaner(host: LocalNode) -> None:
    node = host.node
    CompactionDemand(
        node.local_controller, lambda: node.settings, node.replicas, host.reactor, pytest.fail
    )
    assert commit(host) == 0
    pass_time(host, 5_000)
    assert not partition(host, OFFSETS).needs_cleaner
