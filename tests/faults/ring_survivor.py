"""A producer on a ring that outlives its rings: its records are in the log once, in order.

    python -m tests.faults.ring_survivor LEDGER NAME HOST PORT RUN_DIRECTORY CLUSTER NODE TOPIC
                                         PARTITION

It is idempotent: when its lease ends it takes another ring, and resends what was not acknowledged
with the same sequence, like any Kafka client.  It runs until its standard input ends, then waits
for its last acknowledgements.
"""

from __future__ import annotations

import select
import sys
import time
from collections import deque

from kafkalite.protocol.schemas.transactions import INIT_PRODUCER_ID
from kafkalite.transport.ring import ProducerRing, RingError
from tests.faults.raw_connection import RawConnection
from tests.faults.ring_client import (
    RESPONSE_S_MAX,
    Lease,
    Ledger,
    Place,
    attach,
    batch_of,
    commit,
    tell,
)

IN_FLIGHT_MAX = 5
"""As many batches as a broker remembers of a producer."""
PACE_S = 0.001
NET_S = 0.05
RETRIABLE = {3, 5, 6, 7, 19, 20, 56, 100, 103}
"""Error codes of a broker that has just started, or is about to end."""
OUT_OF_ORDER = 45


class Refused(Exception):
    """A retriable error: unacknowledged batches must be resent, which a new ring does."""


class Survivor:
    """The producer; see the module."""

    def __init__(self, ledger: Ledger, name: str, address: tuple[str, int], place: Place) -> None:
        self.note = ledger.note
        self.name = name
        self.place = place
        self.number = 0
        self.unanswered: deque[tuple[int, bytes]] = deque()
        self.lease: Lease | None = None
        self.left = 0
        with RawConnection(address, RESPONSE_S_MAX) as line:
            asked = {"transactional_id": None, "transaction_timeout_ms": 1}
            given = line.request(INIT_PRODUCER_ID, 2, asked)
        assert given.error_code == 0, given.error_code
        self.producer_id, self.epoch = given.producer_id, given.producer_epoch

    def take_ring(self) -> None:
        """Take a new ring, and resend all unacknowledged batches."""
        while True:
            self.leave()
            self.lease = attach(self.place)
            self.ring = ProducerRing(self.lease.descriptors)
            try:
                for number, batch in self.unanswered:
                    assert commit(self.ring, self.place, batch, number, -1)
                return
            except RingError:
                self.left += 1

    def leave(self) -> None:
        if self.lease is not None:
            self.ring.close()
            self.lease.close()
            self.lease = None

    def run(self) -> None:
        """Send until standard input ends, then wait for the last acknowledgements."""
        going = True
        self.take_ring()
        while going or self.unanswered:
            try:
                if going and len(self.unanswered) < IN_FLIGHT_MAX:
                    self.send()
                self.listen(0.0 if going else NET_S)
            except RingError:
                self.left += 1
                self.take_ring()
            except Refused:
                self.take_ring()
            going = going and not select.select([sys.stdin], [], [], PACE_S)[0]
        self.leave()
        tell("done", "surviving", self.number)
        tell("done", "left", self.left)

    def send(self) -> None:
        batch = batch_of(
            self.name, self.number,
            producer_id=self.producer_id, producer_epoch=self.epoch, base_sequence=self.number,
        )  # fmt: skip
        self.note("sent", self.name, self.number, self.place.partition)
        self.unanswered.append((self.number, batch))
        self.number += 1
        if not commit(self.ring, self.place, batch, self.number - 1, -1):
            raise RingError("five small frames have no room")

    def listen(self, seconds: float) -> None:
        """Process acknowledgements; raise RingError if the lease has ended."""
        assert self.lease is not None
        if seconds and self.ring.writer.begin_sleep():
            select.select([self.ring, self.lease.socket], [], [], seconds)
            self.ring.writer.end_sleep()
        self.ring.clear()
        refused = False
        for number, code, base_offset, *_ in self.ring.take_acks():
            if code in RETRIABLE or (refused and code == OUT_OF_ORDER):
                refused = True  # and the batches after it fail with it
            elif code or refused or number != self.unanswered[0][0]:
                tell("fault", f"C: {self.name} was answered {number}: {code}")
            else:
                self.unanswered.popleft()
                self.note("acked", self.name, number, base_offset)
        if refused:
            time.sleep(NET_S)
            raise Refused
        if self.lease.ended:
            raise RingError("the lease has ended")


def main(ledger: str, name: str, host: str, port: str, *words: str) -> None:
    run_directory, cluster_id, node, topic_id, partition = words
    place = Place(run_directory, cluster_id, int(node), topic_id, int(partition))
    Survivor(Ledger(ledger), name, (host, int(port)), place).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
