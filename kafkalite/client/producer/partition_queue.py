"""A partition's batches, from their first record until their last answer.

    [ under way ]  [ waiting ]  [ open ]
      at most 5      closed       taken from by ext/gathering

They are sent in this order and stay here until they are decided, so whatever happens on the way
nothing is lost: what is not decided is here.

Numbers.  A batch gets its sequence number when it is first sent and keeps it for as long as the
broker may have written it.  Only an answer that says that nothing was written gives a number back,
and then everything behind it is numbered anew as it is sent again, for the broker has refused, or
will refuse, what does not follow.  So one that fails stalls the line: nothing more is sent until
what is under way is answered, and then all goes again in order.  A broker takes the first number
it hears of a producer whatever it is, so until one batch is known to be written they go one by one.

`settled` is the number after the last batch that is known to be written.  A broker that does not
take a batch with exactly this number does not remember what it wrote; a new identity, which begins
at 0, is the way on.  Batches whose outcome is not known stay with the identity they had, and those
of another are not sent beside them.

No I/O, no clock, no lock: sender.py calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkalite._ext.gathering import OpenLine
from kafkalite.client.producer.batch import NO_SEQUENCE, NOBODY, Batch, Identity

if TYPE_CHECKING:
    from kafkalite.client.producer.accumulator import Topic

SEQUENCES = 1 << 31


def after(sequence: int, count: int) -> int:
    """The number after so many from this one on."""
    return (sequence + count) % SEQUENCES


def later(one: int, other: int) -> int:
    """Which of two numbers comes after the other; they begin anew at 0, and are never far apart."""
    return one if (one - other) % SEQUENCES < SEQUENCES // 2 else other


class Line(OpenLine):
    """The batches of one partition."""

    __slots__ = (
        "batches",
        "dropped",
        "identity",
        "in_flight_max",
        "lane",
        "leader",
        "known",
        "leader_epoch",
        "next_sequence",
        "numbered",
        "settled",
        "stalled",
        "topic",
        "under_way",
    )

    def __init__(self, topic: Topic, index: int, in_flight_max: int, numbered: bool) -> None:
        super().__init__(index)
        self.topic = topic
        self.in_flight_max = in_flight_max
        self.numbered = numbered
        self.leader = -1
        self.leader_epoch = -1
        self.lane: Any = None
        """Over which the last batch went."""
        self.dropped = False
        """True if the topic was created again with fewer partitions, without this one."""
        self.batches: list[Batch] = []
        self.under_way = 0
        self.stalled = False
        self.identity = NOBODY
        self.known = False
        """Whether the broker has written a batch of this identity."""
        self.next_sequence = 0
        self.settled = 0

    def __repr__(self) -> str:
        return f"<line {self.topic.name}-{self.index}: {len(self.batches)}, {self.under_way} out>"

    # Gathering.

    def close_batch(self) -> Batch | None:
        """The open batch takes no more records; None: there was none."""
        batch: Batch | None = self.end_batch()
        if batch is not None:
            assert batch.content is not None
            batch.content.close()
            batch.count = batch.content.count
        return batch

    # Sending.

    def waits(self, batch: Batch) -> bool:
        """Whether others have to be answered before the batch can go, however full it is."""
        out = self.under_way
        return not self.may_go(out) or self.batches[out] is not batch

    def may_go(self, out: int) -> bool:
        """Whether one more may be under way than so many."""
        if self.stalled or (out and self.numbered and not self.known):
            return False
        return out < self.in_flight_max

    @property
    def is_free(self) -> bool:
        """Whether what comes now would go at once."""
        self._go_on()
        out = self.under_way
        return self.may_go(out) and out == len(self.batches)

    def next_batch(self, now_s: float) -> Batch | None:
        """The batch whose turn it is; None: there is none, or it has to wait."""
        self._go_on()
        if self.under_way >= len(self.batches) or not self.may_go(self.under_way):
            return None
        batch = self.batches[self.under_way]
        if batch.not_before_s > now_s:
            return None
        if batch is self.open_batch:
            if not batch.wanted and now_s < batch.due_s:
                return None
            if not batch.content or not batch.content.count:
                return None  # whoever opened it has not come to it yet
        if self.under_way and self.numbered:
            wanted = batch.identity if batch.sequence != NO_SEQUENCE else self.identity
            if self.batches[self.under_way - 1].identity != wanted:
                return None
        return batch

    def _go_on(self) -> None:
        """A line that was stalled goes on when nothing is under way any more."""
        if self.stalled and not self.under_way:
            self.stalled = False
            self.next_sequence = self.settled

    def number(self, batch: Batch, identity: Identity) -> None:
        """Give the batch its number, unless it has one that may be known to the broker."""
        if not self.numbered or batch.sequence != NO_SEQUENCE:
            return
        if self.identity == NOBODY:
            self.identity = identity
            self.next_sequence = self.settled = 0
        batch.identity = self.identity
        batch.sequence = self.next_sequence

    def went(self, batch: Batch, lane: Any) -> None:
        """The batch is under way from now on."""
        assert self.batches[self.under_way] is batch, "batches go in order"
        batch.lane = self.lane = lane
        batch.attempts += 1
        self.under_way += 1
        if self.numbered and batch.identity == self.identity:
            self.next_sequence = later(self.next_sequence, after(batch.sequence, batch.count))

    # Answers.

    def again(self, batch: Batch, not_before_s: float, *, unwritten: bool) -> None:
        """It has to go once more; `unwritten`: the broker surely has not written it."""
        if unwritten:
            batch.sequence = NO_SEQUENCE
            batch.doubtful = False
        else:
            batch.doubtful = True
        batch.not_before_s = not_before_s
        self._back(batch)

    def written(self, batch: Batch) -> None:
        """It lies in the log."""
        self._settle(batch)
        self._out(batch)

    def _settle(self, batch: Batch) -> None:
        if self.numbered and batch.identity == self.identity:
            self.known = True
            self.settled = later(self.settled, after(batch.sequence, batch.count))

    def failed(self, batch: Batch, *, unwritten: bool) -> None:
        """It is given up."""
        if batch.sequence != NO_SEQUENCE and unwritten:
            self.stalled = True
        elif batch.attempts and not unwritten:
            # Also where its number was given back: should it be written after all, the next one
            # would be taken for it.
            self.forget_numbers()
        self._out(batch)

    def follows(self, batch: Batch) -> bool:
        """Whether its number is the very one that the broker should take next."""
        return batch.identity == self.identity and batch.sequence == self.settled

    def forget_numbers(self) -> None:
        """Go on under another identity."""
        self.identity = NOBODY
        self.known = False

    def split(self, batch: Batch, parts: list[Batch]) -> None:
        """These go in its place."""
        assert batch.lane is None
        place = self.batches.index(batch)
        self.batches[place : place + 1] = parts

    def _back(self, batch: Batch) -> None:
        assert batch.lane is not None, "it was not under way"
        batch.lane = None
        self.under_way -= 1
        self.stalled = True

    def _out(self, batch: Batch) -> None:
        if batch.lane is not None:
            batch.lane = None
            self.under_way -= 1
        elif batch is self.open_batch:
            self.close_batch()
        self.batches.remove(batch)

    def mend(self) -> list[Batch]:
        """After somebody was interrupted in the middle of the above: nothing is under way.

        Those that are decided already, and were not taken out.
        """
        decided = [batch for batch in self.batches if batch.done]
        for batch in decided:
            if batch.fault is None:
                self._settle(batch)
            else:
                self.forget_numbers()
        kept = []
        for batch in self.batches:
            if batch.done:
                continue
            batch.doubtful = batch.doubtful or batch.lane is not None
            batch.lane = None
            batch.parts = None
            if batch is not self.open_batch and batch.content is not None:
                batch.content.close()
                batch.count = batch.content.count
                if not batch.count:
                    continue  # it was never opened
            kept.append(batch)
        self.batches = kept
        self.under_way = 0
        self.stalled = True
        return decided
