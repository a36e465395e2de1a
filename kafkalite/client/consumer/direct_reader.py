"""Direct reads: the node grants segments of its log files, which this process reads in place.

    READ partition, offset ─────▶ node             waits for records there, as a fetch does
    GRANTED file, position, size, end offset ◀──   with a descriptor, if the file is new here
    pread(file, position…)                         no record bytes pass through a socket

A segment grant has the bounds of a fetch response, and stays valid while segments are deleted: the
node truncates a deleted file only after a delay, and a short read is requested again
(record_range.py).  Descriptors are kept for later grants until the node drops the file.

The next grant is requested as soon as one has arrived, so the node works while this process
decodes.  A partition has at most one READ in flight in its current position epoch; the response to
a READ of an earlier one is dropped.  A node accepts a limited number of READs, and each waits
there: for more partitions one Fetch that names them all is cheaper (PARTITIONS_MAX).

If the node refuses for lack of descriptors, of space or of authorization, the transport is closed
and TCP is used.

Left out: `fetch.min.bytes`, since a grant costs the node the same for one record as for all.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable

from kafkalite.client.consumer.fetch_transport import NEVER, FetchOutcome
from kafkalite.client.consumer.positions import Position
from kafkalite.client.consumer.record_range import GrantedRange, ReadWindow, SegmentFile
from kafkalite.client.net.local_socket import LocalSocket, close_all
from kafkalite.client.net.settings import ClientSettings
from kafkalite.config.client import REQUEST_TIMEOUT_MS
from kafkalite.errors import (
    ClusterAuthorizationFailed,
    KafkaStorageError,
    NetworkException,
    ThrottlingQuotaExceeded,
)
from kafkalite.protocol.schemas.local import GRANTED, READ, TypedRecord

GRANT_SIZE_MAX = 16 << 20
"""Maximum size of a grant in bytes; far more than a fetch's, since it is not held in memory."""
WAIT_MS = 5_000
"""Maximum wait of a READ at the node; it ends with the first record, so a long one adds no
latency.
"""
OUTSTANDING_MAX = 1_000
"""Maximum number of READs in flight to a node."""
PARTITIONS_MAX = OUTSTANDING_MAX // 2
"""Maximum number of a node's partitions that are read directly; half, since seeks leave stale READs
in flight.
"""
TRANSPORT_ERRORS = frozenset(
    error.code for error in (KafkaStorageError, ThrottlingQuotaExceeded, ClusterAuthorizationFailed)
)
"""Errors that concern the transport and not the partition."""


class DirectReader:
    """Fetch transport over the node's local socket, which it owns."""

    def __init__(
        self,
        node_id: int,
        local: LocalSocket,
        memory: ReadWindow,
        settings: ClientSettings,
        isolation_level: int,
    ) -> None:
        self.node_id = node_id
        self.due_s = NEVER
        self.wants_write = False
        self._local = local
        self._memory = memory
        self._isolation_level = isolation_level
        self._timeout_s = (WAIT_MS + settings[REQUEST_TIMEOUT_MS]) / 1000
        self._files: dict[int, SegmentFile] = {}
        self._requests = 0
        self._outstanding: dict[int, tuple[Position, int, int]] = {}
        """By request id: the position, its epoch and the offset."""
        self._requested: dict[Position, int] = {}
        """The position epoch of each READ in flight."""
        self._last: dict[Position, int] = {}
        """The last request id of each position."""

    def fileno(self) -> int:
        return self._local.fileno()

    def fetch(self, positions: Iterable[Position]) -> None:
        known = list(positions)
        wanted = [each for each in known if self._requested.get(each) != each.epoch]
        room = OUTSTANDING_MAX - len(self._outstanding)
        if len(wanted) > room or self.wants_write:
            # Least recently requested first.
            self._last = {each: self._last.get(each, -1) for each in known}
            wanted = sorted(wanted, key=self._last.__getitem__)[:room]
        self.wants_write = False
        for position in wanted:
            read = READ(
                request_id=self._requests,
                topic_id=position.topic_id,
                partition=position.partition.partition,
                leader_epoch=position.leader_epoch,
                offset=position.ahead,
                size_max=GRANT_SIZE_MAX,
                isolation_level=self._isolation_level,
                wait_ms=WAIT_MS,
            )
            if not self._local.send(read):
                self.wants_write = True
                return
            self._outstanding[self._requests] = position, position.epoch, position.ahead
            self._requested[position] = position.epoch
            self._last[position] = self._requests
            self._requests += 1
            self._update_deadline()

    def receive(self) -> list[FetchOutcome]:
        outcomes = []
        while (received := self._local.receive()) is not None:
            outcome = self._granted(*received)
            if outcome is not None:
                outcomes.append(outcome)
        self._update_deadline()
        return outcomes

    def _update_deadline(self) -> None:
        self.due_s = time.monotonic() + self._timeout_s if self._outstanding else NEVER

    def close(self) -> None:
        self._local.close()
        self._files.clear()

    def _granted(self, record: TypedRecord, descriptors: list[int]) -> FetchOutcome | None:
        if record.kind is not GRANTED:
            close_all(descriptors)
            raise NetworkException(f"The node sent {record.kind} instead of GRANTED.")
        fields = record.fields
        if fields["error_code"] in TRANSPORT_ERRORS:
            close_all(descriptors)
            raise NetworkException(fields["error_message"])
        file = self._file(fields["file"], fields["fresh"], descriptors)
        for number in fields["dropped"]:
            self._files.pop(number, None)
        try:
            position, epoch, first_offset = self._outstanding.pop(fields["request_id"])
        except KeyError:
            raise NetworkException("The node sent a grant without a request.") from None
        if self._requested.get(position) == epoch:
            del self._requested[position]
        if epoch != position.epoch:
            return None
        outcome = FetchOutcome(
            position, epoch, fields["error_code"], fields["error_message"],
            log_start_offset=fields["log_start_offset"],
        )  # fmt: skip
        if fields["error_code"] or file is None:
            return outcome
        span = fields["position"], fields["position"] + fields["size"]
        if span[0] < 0 or span[1] <= span[0] or fields["end_offset"] <= first_offset:
            raise NetworkException("The node sent a grant with invalid bounds.")
        aborted = tuple((each.producer_id, each.first_offset) for each in fields["aborted"])
        offsets = first_offset, fields["end_offset"]
        grant = GrantedRange(position, epoch, offsets, aborted, file, span, self._memory)
        return outcome._replace(record_range=grant)

    def _file(self, number: int, fresh: bool, descriptors: list[int]) -> SegmentFile | None:
        """Return the file of a grant, new or known; None if there is nothing to read."""
        if len(descriptors) != int(fresh):
            close_all(descriptors)
            raise NetworkException("A grant came without its descriptor, or with too many.")
        if fresh:
            is_new = number >= 0 and number not in self._files
            if not is_new or not stat.S_ISREG(os.fstat(descriptors[0]).st_mode):
                close_all(descriptors)
                raise NetworkException("The descriptor of a grant is not a new regular file.")
            self._files[number] = SegmentFile(descriptors[0])
        if number < 0:
            return None
        if number not in self._files:
            raise NetworkException("A grant names a file whose descriptor was never sent.")
        return self._files[number]
