"""A controller on a real log, with a flusher that flushes only when the test says so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kafkalite.broker.controller.local_controller import LocalController
from kafkalite.clock import ManualClock
from kafkalite.config.settings import Settings
from kafkalite.coordination.controller import Controller
from kafkalite.coordination.topics import NewTopic, PartitionGrowth, TopicDefaults
from kafkalite.protocol.schemas import internal
from kafkalite.storage.files.disk import DISK
from kafkalite.storage.log.log import Log
from kafkalite.storage.state.known_state import KnownLogState
from kafkalite.storage.state.log_config import LogConfig
from kafkalite.storage.state.log_environment import LogEnvironment
from kafkalite.storage.state.partition_metadata import TopicIdPartition


class HeldFlusher:
    """A flusher that flushes nothing before `go`."""

    def __init__(self) -> None:
        self.held: list[Any] = []
        self.count = 0

    def submit(self, flushes: list[Any]) -> None:
        self.held += flushes
        self.count += len(flushes)

    def go(self) -> None:
        while self.held:
            flush = self.held.pop(0)
            flush.run(DISK)
            flush.done(flush)


class Hosted:
    """A controller's host that can be closed, or crash, and be reopened."""

    def __init__(self, directory: Path, copied_to: Sequence[Path] = ()) -> None:
        self.directory = directory
        self.copied_to = copied_to
        directory.mkdir()
        self.topics = 0
        self.open()

    def open(self, kept_free: int = 0, **known: Any) -> None:
        environment = LogEnvironment.of(self.directory, ManualClock(), DISK)
        environment.space.kept_free = kept_free
        self.log = Log.open(
            self.directory,
            TopicIdPartition("__cluster_metadata", 0, bytes(16)),
            LogConfig.of(Settings.broker().for_topic()),
            environment,
            KnownLogState(**known),
        )
        self.flusher = HeldFlusher()
        self.timers: list[Any] = []
        self.host = LocalController(
            Controller(), self.log, self.flusher, ManualClock(),
            lambda delay_ms, callback: self.timers.append(callback),
            self.copied_to,
        )  # fmt: skip
        self.host.load()

    def crash(self) -> None:
        self.log.release()
        self.open()

    def begin(self, decide: Any) -> list[Any]:
        """Start a decision; the list gets (value, error) on completion."""
        came: list[Any] = []
        self.host.decide(decide).then(lambda value, fault: came.append((value, fault)))
        return came

    def decide(self, decide: Any) -> Any:
        came = self.begin(decide)
        self.flusher.go()
        ((value, fault),) = came
        if fault is not None:
            raise fault
        return value

    def create(self, name: str, partitions: int = 1) -> Any:
        """Return a decision that creates a topic."""
        self.topics += 1
        topic_id = self.topics.to_bytes(16, "big")
        new = NewTopic(name, partitions)
        return lambda controller: controller.create_topics([new], [topic_id], TopicDefaults(1, 1))

    def decision(self, kind: str) -> Any:
        """Return a decision of that kind that is valid in the current state."""
        if kind == "ids":
            return lambda controller: controller.allocate_producer_ids(0)
        topics = self.host.machine.image.topics
        if kind == "create" or not topics:
            return self.create(f"t{self.topics}", 3)
        growth = [
            PartitionGrowth(name, len(topic.partitions) + 2) for name, topic in topics.items()
        ]
        return lambda controller: controller.create_partitions(growth)

    @property
    def state(self) -> list[internal.TypedRecord]:
        return [*self.host.machine.records()]
