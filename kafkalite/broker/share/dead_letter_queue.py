"""DeadLetterQueue: writes the dead letters of share groups, at the leaders of their partitions.

    records to archive ─▶ batch ─▶ partition of the dead letter topic ─▶ committed, or given up
                          ╰─ copies of the records, if the group has them copied

The dead letters of a source partition go to the partition with the same number, modulo the number
of partitions, as in Kafka.  A batch whose leader cannot be reached is sent again, up to
ATTEMPTS_MAX times with growing pauses; any other error ends the write.  A batch of which the
response was lost is in the topic twice: each record has at least one dead letter.

Each batch is built in a tick of its own, whatever the number of share partitions that have dead
letters.  Records to copy are decompressed on the thread of the BatchOpener.  While the batches that
are built or appended have UNWRITTEN_SIZE_MAX bytes, further ones wait.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kafkalite.broker.future import Future
from kafkalite.broker.share.dead_letters import (
    DeadLetter,
    DeadLetterSource,
    KeyValue,
    build_batch,
    letters_of,
)
from kafkalite.errors import (
    KafkaError,
    LeaderNotAvailable,
    NotLeaderOrFollower,
    RequestTimedOut,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kafkalite.records.batch import batches
from kafkalite.records.compression import Codec
from kafkalite.records.decode_steps import BATCH_COST, LARGE, DecodeSteps

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafkalite.broker.replica.batch_appends import AppendBatch
    from kafkalite.broker.replica.batch_opener import BatchOpener
    from kafkalite.broker.replica.partition import Partition
    from kafkalite.broker.share.dead_letter_topics import DeadLetterTopics
    from kafkalite.coordination.share.share_partition import ArchivingRange
    from kafkalite.coordination.share.share_settings import ShareGroupSettings
    from kafkalite.transport.reactor import Reactor

ATTEMPTS_MAX = 5
PAUSE_MS, PAUSE_MS_MAX = 1_000, 30_000
NEXT_TICK_MS = 1
"""After this time a timer runs in a later tick, whatever the time of this one is."""
RETRIABLE = (
    LeaderNotAvailable,
    NotLeaderOrFollower,
    RequestTimedOut,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
BATCH_SIZE_MAX = 1 << 20
COPIED_AT_ONCE = 1 << 20
"""Number of bytes of the log that are read for the copies of one batch; at least one batch is."""
UNWRITTEN_SIZE_MAX = 16 << 20
"""Size of the batches of a node that are being built or appended, with what is read for their
copies, at which no further one begins."""
DECODED_ON_LOOP_MAX = 64 << 10
READ_UNCOMMITTED = 0


class DeadLetterCounts(NamedTuple):
    """The counters of each share group, by its id."""

    records: Counter[str]
    produces: Counter[str]
    failed_produces: Counter[str]


class CopiedRecords(NamedTuple):
    """Keys and values of records, by offset."""

    records: Mapping[int, KeyValue]
    end_offset: int | None
    """The offset after the last record that was read; None: there are no more."""


NOTHING_COPIED = CopiedRecords({}, None)


class DeadLetterQueue:
    """Writes the dead letters of a node's share partitions; see the module."""

    def __init__(
        self,
        topics: DeadLetterTopics,
        settings_of: Callable[[str], ShareGroupSettings],
        append: AppendBatch,
        opener: BatchOpener,
        reactor: Reactor,
    ) -> None:
        self.topics = topics
        self.settings_of = settings_of
        self.append = append
        self.opener = opener
        self.reactor = reactor
        self.counts = DeadLetterCounts(Counter(), Counter(), Counter())
        self._steps: deque[Callable[[], object]] = deque()
        self._is_scheduled = False
        self._unwritten_size = 0

    def add_step(self, step: Callable[[], object]) -> None:
        """Run a step in a later tick, in which no other one runs."""
        self._steps.append(step)
        self._schedule()

    def add_unwritten(self, size: int) -> None:
        """Count bytes that a batch takes; negative ones are free again."""
        self._unwritten_size += size
        self._schedule()

    def _schedule(self) -> None:
        if self._steps and not self._is_scheduled and self._unwritten_size < UNWRITTEN_SIZE_MAX:
            self._is_scheduled = True
            self.reactor.call_later(NEXT_TICK_MS, self._run_step)

    def _run_step(self) -> None:
        self._is_scheduled = False
        step = self._steps.popleft()
        try:
            step()
        finally:
            self._schedule()

    def write(
        self, group_id: str, source: Partition, ranges: Sequence[ArchivingRange]
    ) -> Future[None]:
        """Write the dead letters of records; fail if they cannot be written."""
        write = DeadLetterWrite(self, group_id, source, letters_of(ranges))
        write.step()
        return write.done


class DeadLetterWrite:
    """The dead letters of some records of one share partition."""

    def __init__(
        self,
        queue: DeadLetterQueue,
        group_id: str,
        source: Partition,
        letters: Sequence[DeadLetter],
    ) -> None:
        self.done: Future[None] = Future()
        self._queue = queue
        self._group_id = group_id
        self._source = source
        self._letters = letters
        self._attempts = 0
        self._unwritten_size = 0

    def step(self) -> None:
        """Write the next batch, of at least one dead letter."""
        if isinstance(self._source.error, NotLeaderOrFollower):
            # The next leader writes them: here, the records cannot be copied any more.
            self.done.fail(self._source.error.copy())
            return
        settings = self._queue.settings_of(self._group_id)
        topics = self._queue.topics
        name = settings.dead_letter_topic
        try:
            is_known = topics.find(self._group_id, name, self._source.index) is not None
        except KafkaError as error:
            self.done.fail(error)
            return
        if not is_known:
            topics.create(name).then(self._created)
        elif settings.copies_dead_letters:
            self._copy()
        else:
            self._send(NOTHING_COPIED)

    def _created(self, _: None, error: KafkaError | None) -> None:
        # The topic may not be in this node's image yet.
        self._retry(error if error is not None else LeaderNotAvailable("The topic is created."))

    def _take(self, size: int) -> None:
        """Count the bytes that the batch takes now."""
        self._queue.add_unwritten(size - self._unwritten_size)
        self._unwritten_size = size

    # -- copies ------------------------------------------------------------------------------

    def _copy(self) -> None:
        """Read the next records from the log; what cannot be read is not copied."""
        first_offset = max(self._letters[0].offset, self._source.log.log_start_offset)
        try:
            found = self._source.read(
                first_offset, COPIED_AT_ONCE, READ_UNCOMMITTED, whole_first=True
            )
            content = found.read() if found is not None else b""
            self._take(len(content) + BATCH_SIZE_MAX)
            wanted = [letter.offset for letter in self._letters]
            copied = self._queue.opener.run(_copied(content, wanted))
        except (KafkaError, OSError):
            self._send(NOTHING_COPIED)
            return
        if isinstance(copied, Future):
            copied.then(lambda found, _: self._send(found or NOTHING_COPIED))
        else:
            self._send(copied)

    # -- the batch ---------------------------------------------------------------------------

    def _send(self, copied: CopiedRecords) -> None:
        queue = self._queue
        name = queue.settings_of(self._group_id).dead_letter_topic
        try:
            target = queue.topics.find(self._group_id, name, self._source.index)
            if target is None:
                raise UnknownTopicOrPartition()  # deleted meanwhile
        except KafkaError as error:
            self._retry(error)
            return
        letters = self._letters
        if copied.end_offset is not None:
            letters = [each for each in letters if each.offset < copied.end_offset]
        batch, count = build_batch(
            DeadLetterSource(self._group_id, self._source.topic, self._source.index),
            letters or self._letters[:1],
            copied.records,
            min(target.batch_size_max, BATCH_SIZE_MAX),
            queue.reactor.clock.wall_ms(),
        )
        self._take(len(batch))
        queue.counts.produces[self._group_id] += 1

        def appended(_: None, error: KafkaError | None) -> None:
            self._take(0)
            if error is not None:
                self._retry(error)
                return
            queue.counts.records[self._group_id] += count
            self._attempts = 0
            self._letters = self._letters[count:]
            if self._letters:
                queue.add_step(self.step)
            else:
                self.done.resolve(None)

        queue.append(target.topic_id, target.partition, batch).then(appended)

    def _retry(self, error: KafkaError) -> None:
        """Write the same batch after a pause, or give up."""
        self._take(0)
        self._attempts += 1
        if self._attempts >= ATTEMPTS_MAX or not isinstance(error, RETRIABLE):
            self._queue.counts.failed_produces[self._group_id] += 1
            self.done.fail(error)
            return
        pause_ms = min(PAUSE_MS << (self._attempts - 1), PAUSE_MS_MAX)
        self._queue.reactor.call_later(pause_ms, lambda: self._queue.add_step(self.step))


def _copied(content: bytes, wanted: Sequence[int]) -> DecodeSteps[CopiedRecords]:
    """Return the keys and values of the wanted records, in ascending order, among these batches."""
    found: dict[int, KeyValue] = {}
    size = 0
    end_offset = None
    for batch in batches(content):
        header = batch.header
        end_offset = header.last_offset + 1
        first = bisect_left(wanted, header.base_offset)
        end = bisect_left(wanted, end_offset)
        if first == end:
            yield BATCH_COST
        else:
            is_large = header.codec is not Codec.NONE or len(batch) > DECODED_ON_LOOP_MAX
            yield LARGE if is_large else BATCH_COST + len(batch)
            in_batch = {*wanted[first:end]}
            for record in batch.records():
                if record.offset in in_batch:
                    found[record.offset] = (record.key, record.value)
                    size += len(record.key or b"") + len(record.value or b"")
                    if size > BATCH_SIZE_MAX:
                        return CopiedRecords(found, record.offset + 1)
        if end == len(wanted):
            break
    return CopiedRecords(found, end_offset)
