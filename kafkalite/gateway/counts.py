"""Counts: the gateway's counters, written to its metrics page every second for the exporter.

Each refusal is counted by socket and error, and logged: at most one line in ten seconds for one
error and topic.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from kafkalite.clock import Clock
from kafkalite.errors import BY_CODE
from kafkalite.metrics import COUNTER, GAUGE, Family
from kafkalite.transport.rate_limited_log import RateLimitedLog

PUSH, DEALER = "push", "dealer"
SHOWN_NAME_MAX = 60


class Counts:
    """Counters since the start of the gateway; every kind of error has a log line as well."""

    def __init__(self, clock: Clock) -> None:
        self.peer_log = RateLimitedLog(clock)
        self.began_s = time.time()
        self.refused: Counter[tuple[str, str]] = Counter()
        """Messages refused on receipt, by socket and error."""
        self.failed: Counter[str] = Counter()
        """Records that the broker did not write, by error."""
        self.records = self.record_bytes = self.batches = 0
        """Written records, their bytes and batches."""
        self.answers = 0
        self.unanswered: Counter[str] = Counter()
        """Responses that could not be sent, by reason."""
        self.connected: Counter[str] = Counter()
        """Accepted peers, by socket."""
        self.turned_away: Counter[tuple[str, str]] = Counter()
        """Refused peers, by socket and reason."""
        self.disconnected: Counter[str] = Counter()
        """Accepted peers that have disconnected, by socket."""
        self.cut = 0
        """Number of times all peers were disconnected because of their memory."""
        self.held_back_ms = 0
        """Time in which nothing was received because the broker was too slow."""

    def refuse(self, socket: str, name: bytes, code: int, sentence: str) -> None:
        """Count and log a message refused on receipt."""
        error = error_name(code)
        self.complain(f"a message to {socket} for topic {shown(name)} was refused", error, sentence)
        self.refused[socket, error] += 1

    def fail(self, topic: str, count: int, code: int, sentence: str) -> None:
        """Count and log records that the broker refused or that expired."""
        error = error_name(code)
        self.complain(f"{count} messages for topic {topic} were not written", error, sentence)
        self.failed[error] += count

    def leave_unanswered(self, reason: str, count: int = 1) -> None:
        """Count and log responses that a DEALER does not get."""
        self.complain("an answer to a DEALER was dropped", reason, reason)
        self.unanswered[reason] += count

    def turn_away(self, socket: str, reason: str, sentence: str) -> None:
        """Count and log a refused peer."""
        self.complain(f"a peer of {socket} was not let in", reason, sentence)
        self.turned_away[socket, reason] += 1

    def complain(self, what: str, kind: str, why: str) -> None:
        """Log a line, at a limited rate for each kind."""
        self.peer_log.warn("gateway", f"{what}: {kind}: {why}" if kind != why
                              else f"{what}: {why}", kind=f"{what} {kind}")  # fmt: skip

    def families(self, received: dict[str, tuple[int, int]], held: int) -> Iterator[Family]:
        """Yield all metric families; `received` holds messages and bytes by socket."""
        by_socket = [({"socket": name}, count) for name, (count, _) in received.items()]
        yield Family(
            "kafkalite_gateway_received_messages_total", COUNTER,
            "Messages of ZeroMQ that came, a pack being one.", by_socket,
        )  # fmt: skip
        yield Family(
            "kafkalite_gateway_received_bytes_total", COUNTER, "The bytes of their frames.",
            [({"socket": name}, size) for name, (_, size) in received.items()],
        )  # fmt: skip
        yield one("records", "Records that were written.", self.records)
        yield one("record_bytes", "Bytes of them.", self.record_bytes)
        yield one("batches", "Batches they were written in.", self.batches)
        yield Family(
            "kafkalite_gateway_refused_messages_total", COUNTER,
            "Messages that were refused as they came.", pairs(self.refused, "error"),
        )  # fmt: skip
        yield Family(
            "kafkalite_gateway_failed_records_total", COUNTER,
            "Records that came, and were not written.", singles(self.failed, "error"),
        )  # fmt: skip
        yield one("answers", "Answers that DEALERs were sent.", self.answers)
        yield Family(
            "kafkalite_gateway_unanswered_total", COUNTER,
            "Answers that could not be sent.", singles(self.unanswered, "reason"),
        )  # fmt: skip
        yield Family(
            "kafkalite_gateway_connections_total", COUNTER, "Peers that were let in.",
            singles(self.connected, "socket"),
        )  # fmt: skip
        yield Family(
            "kafkalite_gateway_turned_away_total", COUNTER, "Peers that were not let in.",
            pairs(self.turned_away, "reason"),
        )  # fmt: skip
        yield Family(
            "kafkalite_gateway_disconnections_total", COUNTER,
            "Peers that were let in and have left, or announced a frame beyond all bounds.",
            singles(self.disconnected, "socket"),
        )  # fmt: skip
        yield one("cuts", "How often all peers were disconnected for their memory.", self.cut)
        yield one(
            "held_back_seconds", "How long nothing was received, the broker being behind.",
            self.held_back_ms / 1_000,
        )  # fmt: skip
        yield Family(
            "kafkalite_gateway_held_bytes", GAUGE, "Messages that are not written yet.",
            [({}, held)],
        )  # fmt: skip
        yield Family(
            "kafkalite_gateway_start_time_seconds", GAUGE, "When it began.",
            [({}, round(self.began_s, 3))],
        )  # fmt: skip


def one(name: str, sentence: str, value: float) -> Family:
    """Return a counter of one value."""
    return Family(f"kafkalite_gateway_{name}_total", COUNTER, sentence, [({}, value)])


def singles(counter: Counter[str], label: str) -> list[tuple[dict[str, str], int]]:
    return [({label: name}, count) for name, count in sorted(counter.items())]


def pairs(counter: Counter[tuple[str, str]], label: str) -> list[tuple[dict[str, str], int]]:
    return [({"socket": of, label: name}, count) for (of, name), count in sorted(counter.items())]


def error_name(code: int) -> str:
    """Return Kafka's name of an error code."""
    fault = BY_CODE.get(code)
    return fault.name if fault is not None else str(code)


def shown(name: bytes) -> str:
    """Return a topic's name in ASCII, shortened for the log."""
    text = ascii(name[:SHOWN_NAME_MAX].decode(errors="replace"))[1:-1]
    return f"{text}…" if len(name) > SHOWN_NAME_MAX else text or "(none)"
