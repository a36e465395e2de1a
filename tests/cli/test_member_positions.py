"""MemberPositions, and its use between two calls of consume(), with a consumer that is scripted."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from kafkalite.cli.member_positions import MemberPositions
from kafkalite.cli.shell_tools import console_consumer
from kafkalite.cli.shell_tools.cluster import ToolCluster
from kafkalite.cli.shell_tools.flags import ParsedFlags
from kafkalite.cli.signal_handling import SignalHandling


class ScriptedMessage(NamedTuple):
    """A record, with the methods of librdkafka's."""

    at: int
    number: int
    code: int | None = None

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return self.at

    def offset(self) -> int:
        return self.number

    def error(self) -> KafkaError | None:
        return None if self.code is None else KafkaError(self.code)


class ScriptedConsumer:
    """A consumer that notes its seeks; partitions in `moved` take no stored offsets.

    A second call of consume() rebalances, and returns another record.
    """

    def __init__(self) -> None:
        self.seeks: list[tuple[str, int, int]] = []
        self.stored: list[tuple[int, int]] = []
        self.moved: set[int] = set()
        self.stopped: set[int] = set()
        self.calls = 0

    def seek(self, sought: TopicPartition) -> None:
        if sought.partition in self.stopped:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self.seeks.append((sought.topic, sought.partition, sought.offset))

    def store_offsets(self, message: ScriptedMessage) -> None:
        if message.at in self.moved:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self.stored.append((message.at, message.number))

    def subscribe(self, topics, on_assign, on_revoke, on_lost) -> None:
        self.on_assign = on_assign

    def consume(self, count: int, timeout_s: float) -> list[ScriptedMessage]:
        self.calls += 1
        if self.calls > 1:
            self.on_assign(self, [])
        return [ScriptedMessage(0, 4 + self.calls)]

    def close(self) -> None:
        pass


@pytest.fixture
def consumer() -> ScriptedConsumer:
    return ScriptedConsumer()


@pytest.fixture
def positions(consumer) -> MemberPositions:
    return MemberPositions(consumer)


def test_positions_seek_past_the_stored_records_of_kept_partitions(consumer, positions):
    positions.store([ScriptedMessage(0, 5), ScriptedMessage(1, 7), ScriptedMessage(0, 6)])
    positions.change([TopicPartition("t", 1)])
    assert consumer.stored == [(0, 6), (1, 7)]
    assert consumer.seeks == [("t", 0, 7)]


def test_positions_forget_a_partition_that_left_also_when_it_returns(consumer, positions):
    positions.store([ScriptedMessage(0, 5)])
    positions.change([TopicPartition("t", 0)])
    positions.change([])
    assert consumer.seeks == []


def test_positions_of_partitions_that_moved_are_not_noted(consumer, positions):
    consumer.moved = {0}
    positions.store([ScriptedMessage(0, 5), ScriptedMessage(1, 5)])
    positions.change([])
    assert consumer.seeks == [("t", 1, 6)]


def test_positions_pass_over_errors_and_partitions_that_cannot_seek(consumer, positions):
    consumer.stopped = {0}
    eof = ScriptedMessage(1, 9, KafkaError._PARTITION_EOF)
    positions.advance([ScriptedMessage(0, 5), ScriptedMessage(1, 5), eof])
    positions.change([])
    assert consumer.seeks == [("t", 1, 6)]


def test_console_consumer_keeps_its_position_within_a_batch(consumer, monkeypatch):
    monkeypatch.setattr(ToolCluster, "consumer", lambda *_: consumer)
    monkeypatch.setattr(ToolCluster, "metadata", lambda *_: None)
    monkeypatch.setattr(SignalHandling, "__init__", lambda self: setattr(self, "received", 0))
    flags = {"bootstrap-server": ["127.0.0.1:9"], "topic": ["t"], "group": ["g"]}
    reader = console_consumer.ConsoleReader(ParsedFlags({**flags, "max-messages": [2]}))
    (batch,) = reader.batches()
    assert [message.offset() for message in batch] == [5, 6]
    assert consumer.seeks == [("t", 0, 6)]
    reader.done(batch)
    assert consumer.stored == [(0, 6)]
