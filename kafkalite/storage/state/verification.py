"""VerificationGuard: proof that a partition was verified for the transaction about to begin.

Before the first records of a producer's transaction are appended, the partition's leader sends a
request to the transaction coordinator, which verifies the partition or adds it (KIP-890).  A marker
may come between the request and its response, and end the transaction that the response is about.
So the leader takes the producer's guard before the request, and appends the records only while the
producer still has that very guard: a marker removes it, and so does the first batch of the
transaction.

    begin ─▶ guard ┄┄ request ┄┄ response ─▶ append if `matches(guard)`
                          ╰ marker: the guard is removed, and a later one is another object

With transaction version 2 the coordinator responds to EndTxn before the markers are written, so the
next transaction, with the raised epoch, may begin its verification before the marker of the last
one comes.  That marker has the epoch of the entry, and keeps it.

Guards are not in snapshots: after a restart or a transfer the client's retry is verified.
"""

from __future__ import annotations

COUNT_MAX = 10_000
"""Maximum number of guards in a partition: of producers that wait for a response, or were refused.
Beyond it the oldest are removed."""


class VerificationGuard:
    """A token that is equal to itself only."""

    __slots__ = ()


NOT_REQUIRED = VerificationGuard()
"""Stands for the guard of records that need no verification, because it is disabled."""


class VerificationEntry:
    """The guard of one producer, with the epoch and the lowest sequence of its requests."""

    __slots__ = ("epoch", "guard", "is_implicit", "lowest_sequence", "time_ms")

    def __init__(self, epoch: int, sequence: int, time_ms: int, *, is_implicit: bool) -> None:
        self.guard = VerificationGuard()
        self.epoch = epoch
        self.lowest_sequence = sequence
        """The lowest sequence that was seen with this epoch; the first batch has it."""
        self.time_ms = time_ms
        self.is_implicit = is_implicit
        """True if the request adds the partition, as with transaction version 2."""

    def note(self, epoch: int, sequence: int) -> None:
        """Note a further batch that waits for this guard."""
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch and sequence < self.lowest_sequence:
            self.lowest_sequence = sequence


class VerificationEntries:
    """The guards of one log, by producer id."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: dict[int, VerificationEntry] = {}

    def begin(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int, *, is_implicit: bool
    ) -> VerificationGuard:
        """Return the guard to take before the request: a new one, or the one that the producer
        has."""
        entry = self.entries.get(producer_id)
        if entry is None:
            if len(self.entries) >= COUNT_MAX:
                del self.entries[next(iter(self.entries))]
            entry = VerificationEntry(epoch, sequence, now_ms, is_implicit=is_implicit)
            self.entries[producer_id] = entry
        else:
            entry.note(epoch, sequence)
        return entry.guard

    def matches(self, producer_id: int, guard: VerificationGuard | None) -> bool:
        """Return whether the producer still has the guard that was taken before the request."""
        if guard is NOT_REQUIRED:
            return True
        entry = self.entries.get(producer_id)
        return entry is not None and entry.guard is guard

    def transaction_began(self, producer_id: int, epoch: int) -> None:
        """Remove the guard of a producer whose transactional records were appended, unless it is
        the next transaction's: late records may come until the marker does."""
        entry = self.entries.get(producer_id)
        if entry is not None and entry.epoch <= epoch:
            del self.entries[producer_id]

    def transaction_ended(self, producer_id: int, marker_epoch: int) -> None:
        """Remove the guard of a producer whose marker was appended, unless it is the next
        transaction's."""
        entry = self.entries.get(producer_id)
        if entry is not None and not (entry.is_implicit and entry.epoch == marker_epoch):
            del self.entries[producer_id]

    def expire(self, before_ms: int) -> None:
        """Remove guards that were taken before this time and never used."""
        expired = [key for key, entry in self.entries.items() if entry.time_ms <= before_ms]
        for producer_id in expired:
            del self.entries[producer_id]
