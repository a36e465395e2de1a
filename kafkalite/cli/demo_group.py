"""Consumers of the demo: a group of two processes, one of which is killed during the run.

    python -m kafkalite.cli.demo_group      a member; reads its configuration, a JSON line, from
    stdin

A member writes records to stdout and then commits them.  When it is killed, records that it had not
written are read by the other member, and records that it had written but not committed are written
twice.  Each record is a frame, so that a record that was written in part is recognized:

    partition     4 bytes    -1: an assignment, `offset` is the number of assigned partitions
    offset        8 bytes
    key size      4 bytes
    value size    4 bytes
    key, value

`ReaderGroup` reads the frames of both members, and skips offsets that it has read already: each
record counts once.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from kafkalite.cli.command import write_stdout
from kafkalite.errors import Refusal

HEAD = struct.Struct(">iqii")
ASSIGNED = -1
MEMBERS = 2
SESSION_MS = 6_000
"""Session timeout: the shortest that a broker allows by default."""
READ_SIZE = 1 << 20
BATCH_COUNT = 2_000
POLL_INTERVAL_S = 0.1
JOIN_TIMEOUT_S = 30.0
TAKEOVER_TIMEOUT_S = 60.0

RecordCallback = Callable[[bytes, bytes], None]


@dataclass(eq=False)
class GroupReader:
    """A consumer process and its output."""

    process: subprocess.Popen[bytes]
    buffer: bytearray = field(default_factory=bytearray)
    assigned: int = -1


class ReaderGroup:
    """Two consumers from given start offsets; `on_record(key, value)` gets each record once."""

    def __init__(
        self, settings: dict[str, Any], before: Sequence[TopicPartition], on_record: RecordCallback
    ) -> None:
        self.on_record = on_record
        self.next_offsets = {
            topic_partition.partition: topic_partition.offset for topic_partition in before
        }
        self.count = 0
        self.killed_after = 0
        self.killed_at = 0.0
        self.taken_over_s = 0.0
        self._settings = {
            **settings,
            "group.id": f"{before[0].topic}-demo",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": SESSION_MS // 6,
            "enable.auto.commit": False,
        }
        self._topic = before[0].topic
        self._selector = selectors.DefaultSelector()
        self._orphans: set[int] = set()
        self._owners: dict[int, GroupReader] = {}
        self._commit_start_offsets(before)
        self.members = [self._started() for _ in range(MEMBERS)]

    def __enter__(self) -> ReaderGroup:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.process.terminate()
        for member in self.members:
            # It may be blocked in a write: read its output until it exits.
            member.process.communicate()
        self._selector.close()

    def _commit_start_offsets(self, before: Sequence[TopicPartition]) -> None:
        """Commit the start offsets, so that the group skips records of earlier runs.

        A member that an earlier run killed stays in the group until its session expires.
        """
        consumer = Consumer(self._settings)
        deadline = time.monotonic() + 2 * SESSION_MS / 1000
        try:
            while (error := self._commit_error(consumer, before)) is not None:
                left = time.monotonic() < deadline
                if error.code() != KafkaError.UNKNOWN_MEMBER_ID or not left:
                    raise Refusal(
                        f"offset commit of group {self._settings['group.id']} failed: {error.str()}"
                        " (stop other demos on this topic)"
                    )
                time.sleep(POLL_INTERVAL_S)
        finally:
            consumer.close()

    @staticmethod
    def _commit_error(consumer: Consumer, before: Sequence[TopicPartition]) -> KafkaError | None:
        """Commit the start offsets; return the error, or None."""
        try:
            consumer.commit(offsets=list(before), asynchronous=False)
        except KafkaException as raised:
            error: KafkaError = raised.args[0]
            return error
        return None

    def _started(self) -> GroupReader:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "kafkalite.cli.demo_group"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C must not reach the member
        )
        assert process.stdin is not None and process.stdout is not None
        configuration = {"topic": self._topic, "settings": self._settings}
        # Not on the command line, which other users can read: it may contain a password.
        process.stdin.write(json.dumps(configuration).encode() + b"\n")
        process.stdin.flush()
        member = GroupReader(process)
        self._selector.register(process.stdout, selectors.EVENT_READ, member)
        return member

    @property
    def readers(self) -> int:
        """The number of members that own a partition they have read from."""
        owners = [*self._owners.values()]
        return sum(member in owners for member in self.members)

    # -- reading -----------------------------------------------------------------------------

    def wait_for_members(self) -> None:
        """Wait until both members have joined and share the partitions."""
        expected = len(self.next_offsets)
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        while (
            min(member.assigned for member in self.members) < min(1, expected // MEMBERS)
            or sum(member.assigned for member in self.members) != expected
        ):
            self.poll(POLL_INTERVAL_S)
            if time.monotonic() > deadline:
                raise Refusal(
                    f"the members have not joined the group within {JOIN_TIMEOUT_S:.0f} s; see the"
                    " broker's log"
                )

    def kill_one(self) -> None:
        """Kill the member with the most partitions, with SIGKILL."""
        owners = [*self._owners.values()]
        member = max(self.members, key=lambda each: (owners.count(each), each.assigned))
        member.process.kill()
        self.killed_after, self.killed_at = self.count, time.monotonic()
        self._orphans = {p for p, owner in self._owners.items() if owner is member}

    def drain(self, ends: Sequence[TopicPartition]) -> None:
        """Read up to these end offsets."""
        deadline = time.monotonic() + TAKEOVER_TIMEOUT_S
        connected_admin = self.count
        while any(self.next_offsets[end.partition] < end.offset for end in ends):
            self.poll(POLL_INTERVAL_S)
            if self.count > connected_admin:
                connected_admin, deadline = self.count, time.monotonic() + TAKEOVER_TIMEOUT_S
            elif time.monotonic() > deadline:
                raise Refusal(
                    f"the group has read no record for {TAKEOVER_TIMEOUT_S:.0f} s, after"
                    f" {self.count:,} flights; see the broker's log"
                )

    def poll(self, wait_s: float) -> None:
        """Read the output of the members, for at most `wait_s`."""
        for key, _ in self._selector.select(wait_s):
            member = key.data
            some = os.read(key.fd, READ_SIZE)
            if not some:
                self._selector.unregister(key.fileobj)
                if member.process.wait() != -signal.SIGKILL:
                    raise Refusal("a member of the group exited unexpectedly; see its output above")
                continue
            member.buffer += some
            self._frames(member)

    def _frames(self, member: GroupReader) -> None:
        buffer, position = member.buffer, 0
        while len(buffer) - position >= HEAD.size:
            partition, offset, key_size, value_size = HEAD.unpack_from(buffer, position)
            begin = position + HEAD.size
            end = begin + key_size + value_size
            if end > len(buffer):
                break
            position = end
            if partition == ASSIGNED:
                member.assigned = offset
                continue
            if partition in self._orphans and self._owners[partition] is not member:
                self._orphans.clear()
                self.taken_over_s = time.monotonic() - self.killed_at
            self._owners[partition] = member
            if offset >= self.next_offsets[partition]:
                self.next_offsets[partition] = offset + 1
                self.count += 1
                self.on_record(bytes(buffer[begin : begin + key_size]),
                          bytes(buffer[begin + key_size : end]))  # fmt: skip
        del buffer[:position]


# -- a member ------------------------------------------------------------------------------------


def member() -> None:
    """Read records, write them to stdout and commit them, until a signal arrives."""
    configuration = json.loads(sys.stdin.readline())
    received: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    assigned_partitions: set[int] = set()

    def write_assignment() -> None:
        write_stdout(HEAD.pack(ASSIGNED, len(assigned_partitions), 0, 0))

    def on_assign(_: Consumer, partitions: list[TopicPartition]) -> None:
        assigned_partitions.update(topic_partition.partition for topic_partition in partitions)
        write_assignment()

    def on_revoke(_: Consumer, partitions: list[TopicPartition]) -> None:
        assigned_partitions.difference_update(
            topic_partition.partition for topic_partition in partitions
        )
        write_assignment()

    consumer = Consumer(configuration["settings"])
    consumer.subscribe(
        [configuration["topic"]], on_assign=on_assign, on_revoke=on_revoke, on_lost=on_revoke
    )
    while not received:
        frames = []
        for message in consumer.consume(BATCH_COUNT, POLL_INTERVAL_S):
            if message.error() is None:
                key, value = message.key() or b"", message.value() or b""
                frames += [
                    HEAD.pack(message.partition(), message.offset(), len(key), len(value)),
                    key,
                    value,
                ]
        if frames:
            write_stdout(b"".join(frames))
            try:
                consumer.commit(asynchronous=False)
            except KafkaException:
                # The group has rebalanced: the members that own the partitions now read these
                # again.
                continue
    consumer.close()


if __name__ == "__main__":
    try:
        member()
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(1)  # the demo has exited
