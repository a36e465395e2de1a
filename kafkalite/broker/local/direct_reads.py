"""DirectReads: segment grants of one local connection, which reads the files itself.

    READ ─▶ authorized? readable? ─▶ grant ─▶ GRANTED: file, position, size   + the descriptor
                 │ no bytes yet                                                 of a new file
                 └─▶ purgatory, until there are bytes or the wait times out ─▶ grant

A grant ends at a batch boundary and, like a fetch, does not pass the high watermark or the last
stable offset.  It ends before it has more aborted transactions than fit a packet, too.  If their
lookup takes several ticks, the response is sent in the last one.

The files of a connection are numbered from 0 in the order in which they are granted.  Each file's
descriptor is sent once; it is a new open of the file, read-only.  A file is dropped when its
segment was removed, its partition is led elsewhere, or too many other files were granted since.
Its number is listed as dropped in the next response (at the end of a log, when the read's wait
ends) and is never reused.

Granted bytes are counted as bytes out.

Left out: grants at followers, which would take next to nothing from the leader: a grant of 16 MiB
costs it 17 us of processor time, and the client reads the file.  The file of another replica would
fill the page cache once more, and a descriptor shows records that may be truncated.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kafkalite.broker.future import Future
from kafkalite.broker.replica.delayed_operation import DelayedOperation, WatchedPartition
from kafkalite.broker.replica.readable_partition import READ_COMMITTED
from kafkalite.broker.request_metrics import EXPECTED
from kafkalite.broker.security import READ, TOPIC
from kafkalite.broker.stepping import PAUSE, Work, in_steps
from kafkalite.errors import (
    KafkaError,
    OffsetOutOfRange,
    ThrottlingQuotaExceeded,
    TopicAuthorizationFailed,
)
from kafkalite.protocol.schemas import local
from kafkalite.records.file_slice import OpenFile
from kafkalite.storage.log.committed_read import CommittedRange
from kafkalite.storage.segment.aborted_lookup import LookupBudget

if TYPE_CHECKING:
    from kafkalite.broker.client_context import ClientContext
    from kafkalite.broker.local.local_node import LocalNode
    from kafkalite.broker.replica.partition import Partition
    from kafkalite.storage.log.log import Log
    from kafkalite.storage.log.segment_grants import SegmentGrant
    from kafkalite.storage.segment.segment import LogSegment

FILES_MAX = 256
"""Maximum number of files granted to one connection at a time."""

DESCRIPTORS_RESERVED = 128
"""Number of descriptors reserved for the node's connections and files, not for grants or rings."""

WAITING_MAX = 10_000
"""Maximum number of waiting reads of all connections together."""

ABORTED_MAX = 2_000
"""Maximum number of aborted transactions of a grant, which are sent in its packet."""

PartitionKey = tuple[bytes, int]
"""A partition: topic id and index."""


class DelayedRead(DelayedOperation):
    """A read of a partition that has no bytes to read yet.

    Complete when
    A  the partition has readable bytes, or
    B  the read would return an error: no longer led here, a new leader epoch, offset out of range,
       or
    C  the wait has timed out; the response is empty.
    """

    def __init__(
        self, partition: Partition, read: dict[str, Any], respond: Callable[[], object]
    ) -> None:
        self.partitions = (partition,)
        self._partition = partition
        self._read = read
        self._respond = respond

    def check(self, partition: WatchedPartition) -> bool:
        read = self._read
        try:
            self._partition.check_epoch(read["leader_epoch"])
            return self._partition.readable(read["offset"], read["isolation_level"])
        except KafkaError:
            return True

    def build_response(self) -> Any:
        return self._respond()


class DirectReads:
    """The reads of one connection; see the module."""

    def __init__(
        self,
        node: LocalNode,
        client: ClientContext,
        counts: Counter[str],
        send: Callable[..., object],
    ) -> None:
        self._node = node
        self._client = client
        self._counts = counts
        self._send = send
        self._waiting: dict[int, Future[Any]] = {}
        self._count = 0
        self._files: OrderedDict[LogSegment, tuple[int, PartitionKey]] = OrderedDict()
        """(file number, partition) of the granted files, least recently used first."""
        self._file_count = 0
        self._dropped: list[int] = []
        self._generations: dict[PartitionKey, tuple[Log, int]] = {}
        """The log of each partition and its generation when it was last checked for removed
        segments."""

    @property
    def pending_count(self) -> int:
        """Number of waiting reads."""
        return len(self._waiting)

    def read(self, read: dict[str, Any]) -> None:
        """Handle a READ; the response is sent now or later."""
        key = read["topic_id"], read["partition"]
        self._counts["reads"] += 1
        try:
            if read["wait_ms"] > 0 and self._counts["waiting"] >= WAITING_MAX:
                raise ThrottlingQuotaExceeded(
                    f"{WAITING_MAX} reads wait at this node; retry later."
                )
            partition = self._node.replicas.leader(*key)
            partition.traffic.fetches += 1
            if not self._client.may(READ, TOPIC, partition.topic):
                raise TopicAuthorizationFailed()
            if self._grant(partition, read):
                return
        except KafkaError as error:
            self.refuse(read, error)
            return
        if read["wait_ms"] <= 0:
            self._respond(read, partition)
            return
        delayed = DelayedRead(partition, read, lambda: self._retry(partition, read))
        self._hold(read, self._node.replicas.purgatory.watch(delayed, read["wait_ms"]))

    def _hold(self, read: dict[str, Any], future: Future[Any]) -> None:
        """Keep the Future of a READ that has no response yet."""
        number = self._count = self._count + 1
        self._waiting[number] = future
        self._counts["waiting"] += 1

        def settled(_: object, error: KafkaError | None) -> None:
            self._completed(number)
            if error is not None:
                self.refuse(read, error)

        future.then(settled)

    def _completed(self, number: int) -> None:
        if self._waiting.pop(number, None) is not None:
            self._counts["waiting"] -= 1

    def _retry(self, partition: Partition, read: dict[str, Any]) -> None:
        try:
            if not self._grant(partition, read):
                self._respond(read, partition)
        except KafkaError as error:
            self.refuse(read, error)

    def close(self) -> None:
        """Abandon the waiting reads of a closed connection."""
        waiting, self._waiting = self._waiting, {}
        self._counts["waiting"] -= len(waiting)
        for future in waiting.values():
            future.abandon()

    # -- granting ----------------------------------------------------------------------------

    def _grant(self, partition: Partition, read: dict[str, Any]) -> bool:
        """Respond with a grant of the readable bytes, now or once the aborted transactions in it
        are found; return False if no bytes are readable yet."""
        partition.check_epoch(read["leader_epoch"])
        grant, found = _range(partition, read)
        # Also without a grant: a reader at the log end gets the dropped files when its wait ends.
        self._drop_removed(partition)
        if grant is None:
            return False
        if found is None or found.step(LookupBudget()):
            self._respond_with(partition, read, grant, found)
            return True
        work = in_steps(self._node.reactor, self._look_up(partition, read, grant, found))
        if isinstance(work, Future):
            self._hold(read, work)
        return True

    def _look_up(
        self, partition: Partition, read: dict[str, Any], grant: SegmentGrant, found: CommittedRange
    ) -> Work[None]:
        """Complete the lookup of a grant, then respond."""
        while not found.step(LookupBudget()):
            yield PAUSE
            if found.is_stale or partition.error is not None:
                self._retry(partition, read)
                return
        self._respond_with(partition, read, grant, found)

    def _respond_with(
        self,
        partition: Partition,
        read: dict[str, Any],
        grant: SegmentGrant,
        found: CommittedRange | None,
    ) -> None:
        if found is not None and found.size < grant.size:
            grant = grant._replace(size=found.size, end_offset=found.end_offset)
        granted = self._files.get(grant.segment)
        new_files: list[OpenFile] = []
        if granted is None:
            new_files.append(grant.segment.reopened(DESCRIPTORS_RESERVED))
            granted = self._file_count, (partition.topic_id, partition.index)
            self._file_count += 1
            self._evict_files()
            self._files[grant.segment] = granted
        else:
            self._files.move_to_end(grant.segment)
        partition.traffic.bytes_out += grant.size
        self._counts["read_bytes"] += grant.size
        self._counts["descriptors"] += len(new_files)
        aborted = found.aborted if found is not None else None
        self._respond(read, partition, grant, granted[0], new_files, aborted)

    def _evict_files(self) -> None:
        while len(self._files) >= FILES_MAX:
            _, (number, _) = self._files.popitem(last=False)
            self._dropped.append(number)

    def _drop_removed(self, partition: Partition) -> None:
        """Drop the files of segments that the partition no longer has."""
        key = partition.topic_id, partition.index
        generation = partition.log, partition.log.generation
        if self._generations.get(key) != generation:
            self._generations[key] = generation
            present = set(partition.log.segments)
            self._drop(key, lambda segment: segment not in present)

    def _drop(self, key: PartitionKey, is_removed: Callable[[LogSegment], bool]) -> None:
        for segment, (number, of) in list(self._files.items()):
            if of == key and is_removed(segment):
                del self._files[segment]
                self._dropped.append(number)

    # -- responses ---------------------------------------------------------------------------

    def _respond(
        self,
        read: dict[str, Any],
        partition: Partition,
        grant: SegmentGrant | None = None,
        file: int = -1,
        new_files: list[OpenFile] | None = None,
        aborted: list[tuple[int, int]] | None = None,
    ) -> None:
        self._granted(
            read,
            None,
            *(new_files or ()),
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log.log_start_offset,
            file=file,
            fresh=bool(new_files),
            position=grant.position if grant else 0,
            size=grant.size if grant else 0,
            end_offset=grant.end_offset if grant else -1,
            aborted=[
                {"producer_id": producer_id, "first_offset": first_offset}
                for producer_id, first_offset in aborted or ()
            ],
        )

    def refuse(self, read: dict[str, Any], error: KafkaError) -> None:
        """Respond to a READ with an error.

        For an offset out of range, the response includes the log's offsets.
        """
        key = read["topic_id"], read["partition"]
        traffic = self._node.replicas.traffic_of(key[0])
        traffic.failed_fetches += error.code not in EXPECTED
        partition = self._node.replicas.of_topic(key[0]).get(key[1])
        if partition is None:
            self._drop(key, lambda segment: True)
            self._generations.pop(key, None)
        if not isinstance(error, OffsetOutOfRange):
            partition = None
        self._granted(
            read,
            error,
            high_watermark=partition.high_watermark if partition else -1,
            last_stable_offset=partition.last_stable_offset if partition else -1,
            log_start_offset=partition.log.log_start_offset if partition else -1,
            file=-1,
            fresh=False,
            position=0,
            size=0,
            end_offset=-1,
            aborted=[],
        )

    def _granted(
        self, read: dict[str, Any], error: KafkaError | None, *files: OpenFile, **fields: Any
    ) -> None:
        dropped, self._dropped = self._dropped, []
        if error is not None:
            self._counts["reads_refused"] += 1
        self._send(
            local.GRANTED(
                request_id=read["request_id"],
                error_code=error.code if error else 0,
                error_message=str(error) if error else None,
                dropped=dropped,
                **fields,
            ),
            *files,
        )


def _range(
    partition: Partition, read: dict[str, Any]
) -> tuple[SegmentGrant | None, CommittedRange | None]:
    """Return a grant of the readable bytes, and the lookup of the aborted transactions in it; None
    if there are none."""
    offset, size_max = read["offset"], max(0, read["size_max"])
    grant = partition.grant(offset, size_max, read["isolation_level"])
    if grant is None or read["isolation_level"] != READ_COMMITTED:
        return grant, None
    if not partition.log.segments.with_aborted(offset):
        return grant, None
    found = CommittedRange(
        partition.log, grant.segment, grant.position, grant.size, offset, grant.end_offset,
        ABORTED_MAX,
    )  # fmt: skip
    return grant, found
