"""GatewayMetrics: the counters of the gateway, written to its page once a second.

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


class GatewayMetrics:
    """Counters since the start of the gateway; every kind of error has a log line as well."""

    def __init__(self, clock: Clock) -> None:
        self.peer_log = RateLimitedLog(clock)
        self.started_s = time.time()
        self.refused: Counter[tuple[str, str]] = Counter()
        """Messages refused on receipt, by socket and error."""
        self.failed: Counter[str] = Counter()
        """Records that the broker did not write, by error."""
        self.records = self.record_bytes = self.batches = 0
        """Written records, their bytes and batches."""
        self.responses = 0
        self.dropped_responses: Counter[str] = Counter()
        """Responses that could not be sent, by reason."""
        self.connected: Counter[str] = Counter()
        """Accepted peers, by socket."""
        self.refused_peers: Counter[tuple[str, str]] = Counter()
        """Refused peers, by socket and reason."""
        self.disconnected: Counter[str] = Counter()
        """Accepted peers that have disconnected, by socket."""
        self.full_disconnects = 0
        """Number of times all peers were disconnected because of their memory."""
        self.paused_ms = 0
        """Time in which nothing was received because the broker was too slow."""

    def refuse(self, socket: str, name: bytes, code: int, sentence: str) -> None:
        """Count and log a message refused on receipt."""
        error = error_name(code)
        self.log_limited(
            f"Message to {socket} for topic {shown(name)} was refused", error, sentence
        )
        self.refused[socket, error] += 1

    def fail(self, topic: str, count: int, code: int, sentence: str) -> None:
        """Count and log records that the broker refused or that expired."""
        error = error_name(code)
        self.log_limited(f"{count} messages for topic {topic} were not written", error, sentence)
        self.failed[error] += count

    def drop_responses(self, reason: str, count: int = 1) -> None:
        """Count and log responses that a DEALER does not get."""
        self.log_limited("Response to a DEALER was dropped", reason, reason)
        self.dropped_responses[reason] += count

    def refuse_peer(self, socket: str, reason: str, sentence: str) -> None:
        """Count and log a refused peer."""
        self.log_limited(f"Peer of {socket} was refused", reason, sentence)
        self.refused_peers[socket, reason] += 1

    def log_limited(self, what: str, kind: str, why: str) -> None:
        """Log a line, at a limited rate for each kind."""
        self.peer_log.warn("gateway", f"{what}: {kind}: {why}" if kind != why
                              else f"{what}: {why}", kind=f"{what} {kind}")  # fmt: skip

    def families(self, received: dict[str, tuple[int, int]], pending_size: int) -> Iterator[Family]:
        """Yield all metric families; `received` holds messages and bytes by socket."""
        by_socket = [({"socket": name}, count) for name, (count, _) in received.items()]
        yield Family(
            "kafkalite_gateway_received_messages_total", COUNTER,
            "Received ZeroMQ messages; a pack counts as one.", by_socket,
        )  # fmt: skip
        yield Family(
            "kafkalite_gateway_received_bytes_total", COUNTER,
            "Bytes of the frames of received messages.",
            [({"socket": name}, size) for name, (_, size) in received.items()],
        )  # fmt: skip
        yield one("records", "Written records.", self.records)
        yield one("record_bytes", "Bytes of written records.", self.record_bytes)
        yield one("batches", "Written batches.", self.batches)
        yield Family(
            "kafkalite_gateway_refused_messages_total", COUNTER,
            "Messages refused on receipt, by socket and error.", pairs(self.refused, "error"),
        )  # fmt: skip
        yield Family(
            "kafkalite_gateway_failed_records_total", COUNTER,
            "Received records that were not written, by error.", singles(self.failed, "error"),
        )  # fmt: skip
        yield one("answers", "Responses sent to DEALERs.", self.responses)
        yield Family(
            "kafkalite_gateway_unanswered_total", COUNTER,
            "Responses that could not be sent, by reason.",
            singles(self.dropped_responses, "reason"),
        )  # fmt: skip
        yield from self._peer_families()
        yield one(
            "held_back_seconds",
            "Seconds in which nothing was received because the broker was too slow.",
            self.paused_ms / 1_000,
        )  # fmt: skip
        yield Family(
            "kafkalite_gateway_held_bytes", GAUGE, "Bytes of messages that are not written yet.",
            [({}, pending_size)],
        )  # fmt: skip
        yield Family(
            "kafkalite_gateway_start_time_seconds", GAUGE,
            "Start time of the gateway since the epoch, in seconds.",
            [({}, round(self.started_s, 3))],
        )  # fmt: skip

    def _peer_families(self) -> Iterator[Family]:
        """Yield the metric families about connections."""
        yield Family(
            "kafkalite_gateway_connections_total", COUNTER, "Accepted peers, by socket.",
            singles(self.connected, "socket"),
        )  # fmt: skip
        yield Family(
            "kafkalite_gateway_turned_away_total", COUNTER, "Refused peers, by socket and reason.",
            pairs(self.refused_peers, "reason"),
        )  # fmt: skip
        yield Family(
            "kafkalite_gateway_disconnections_total", COUNTER,
            "Accepted peers that disconnected, or announced a frame above the limit.",
            singles(self.disconnected, "socket"),
        )  # fmt: skip
        yield one(
            "cuts", "Times that all peers were disconnected to release memory.",
            self.full_disconnects,
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
    error = BY_CODE.get(code)
    return error.name if error is not None else str(code)


def shown(name: bytes) -> str:
    """Return a topic's name in ASCII, shortened for the log."""
    text = ascii(name[:SHOWN_NAME_MAX].decode(errors="replace"))[1:-1]
    return f"{text}…" if len(name) > SHOWN_NAME_MAX else text or "(none)"
