"""CompactionClient: the command line's requests to compact topics, and for the log cleaner's state.

The messages have no counterpart in Kafka's protocol, so they go over the nodes' local sockets
(protocol/schemas/cleaning.py): the command runs on the broker's host, as the broker's user.
"""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from confluent_kafka.admin import ClusterMetadata, TopicDescription

from kafkalite.cli.progress import format_size
from kafkalite.client.net.local_socket import LocalSocket, open_local
from kafkalite.errors import KafkaError, Refusal
from kafkalite.protocol.record_kinds import RecordKind
from kafkalite.protocol.schemas import cleaning
from kafkalite.protocol.schemas.cleaning import CleaningState

POLL_S = 0.05
REDRAW_S = 0.2
STILL_S = 10.0
"""Time without a change after which a line is printed where stderr is not a terminal."""
CLEANER_TIMEOUT_S = 15.0
"""Time for a log cleaner to connect to a node."""
RESPONSE_TIMEOUT_S = 10.0


class PartitionAddress(NamedTuple):
    """A partition and the node that leads it."""

    topic: str
    topic_id: bytes
    partition: int
    node_id: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class CompactionClient:
    """Requests to the nodes of one cluster, over their local sockets."""

    def __init__(self, cluster: ClusterMetadata) -> None:
        self._cluster = cluster
        self._sockets: dict[int, LocalSocket | None] = {}
        self._request_count = 0

    def __enter__(self) -> CompactionClient:
        return self

    def __exit__(self, *_: object) -> None:
        for local in self._sockets.values():
            if local is not None:
                local.close()

    def _local(self, node_id: int) -> LocalSocket | None:
        if node_id not in self._sockets:
            port = self._cluster.brokers[node_id].port
            self._sockets[node_id] = open_local(
                str(self._cluster.cluster_id), node_id, port, "kafkalite"
            )
        return self._sockets[node_id]

    def request(self, kind: RecordKind, address: PartitionAddress) -> dict[str, Any]:
        """Send COMPACT or CLEANER_STATE; return the fields of CLEANER_STATUS.

        Raises Refusal with the node's error, or if the node cannot be reached.
        """
        local = self._local(address.node_id)
        if local is None:
            raise Refusal(
                f"{address}: node {address.node_id} has no local socket that this user may use; run"
                " this on the broker's host, as the broker's user, with native.enable=true"
            )
        self._request_count += 1
        try:
            local.send(
                kind(
                    request_id=self._request_count,
                    topic_id=address.topic_id,
                    partition=address.partition,
                )
            )
            received = local.receive(RESPONSE_TIMEOUT_S)
        except KafkaError as error:
            raise Refusal(f"{address}: {error}") from None
        if received is None:
            raise Refusal(
                f"{address}: node {address.node_id} did not respond in {RESPONSE_TIMEOUT_S:g} s"
            )
        fields = received[0].fields
        if received[0].kind is not cleaning.CLEANER_STATUS:
            raise Refusal(
                f"{address}: node {address.node_id} sent an unexpected packet ({received[0].kind})"
            )
        if fields["error_code"]:
            raise Refusal(f"{address}: {fields['error_message']}")
        return fields

    def statuses(self, addresses: list[PartitionAddress]) -> dict[int, dict[str, Any]]:
        """Return what is known of these partitions, by partition; without errors."""
        found = {}
        for address in addresses:
            try:
                found[address.partition] = self.request(cleaning.CLEANER_STATE, address)
            except Refusal:
                continue
        return found


def addresses_of(topic: TopicDescription) -> Iterator[PartitionAddress]:
    """Yield the partitions of a topic that have a leader."""
    topic_id = base64.urlsafe_b64decode(f"{topic.topic_id}==")
    for partition in topic.partitions:
        if partition.leader is not None:
            yield PartitionAddress(topic.name, topic_id, partition.id, partition.leader.id)


def compact(
    client: CompactionClient, addresses: list[PartitionAddress], timeout_s: float
) -> list[dict[str, Any]]:
    """Have partitions compacted now; return the state before and after, by partition.

    Raises Refusal if one cannot be compacted, after the others were.
    """
    before = {address: client.request(cleaning.CLEANER_STATE, address) for address in addresses}
    for address in addresses:
        requested = client.request(cleaning.COMPACT, address)
        # Now that the active segment was rolled, its records count as dirty, too.
        before[address]["dirty_ratio"] = requested["dirty_ratio"]
    deadline = time.monotonic() + timeout_s
    results: list[dict[str, Any]] = []
    errors: list[str] = []
    with CompactionLine(len(addresses)) as line:
        for address in addresses:
            try:
                after = _wait(client, address, deadline, line)
            except Refusal as refusal:
                errors.append(str(refusal))
                continue
            line.done += 1
            results.append(_result(address, before[address], after))
    if errors:
        raise Refusal("; ".join(errors))
    return results


def _wait(
    client: CompactionClient, address: PartitionAddress, deadline: float, line: CompactionLine
) -> dict[str, Any]:
    """Return the status of a partition once the requested passes have ended."""
    cleaner_deadline = time.monotonic() + CLEANER_TIMEOUT_S
    while True:
        status = client.request(cleaning.CLEANER_STATE, address)
        if not status["is_requested"] and status["state"] != CleaningState.CLEANING:
            if status["reason"]:
                raise Refusal(f"{address} cannot be compacted: {status['reason']}")
            return status
        now = time.monotonic()
        if status["cleaners"]:
            cleaner_deadline = now + CLEANER_TIMEOUT_S
        if now >= cleaner_deadline:
            raise Refusal(
                f"{address}: no log cleaner is connected to node {address.node_id}; see the"
                " broker's log"
            )
        if now >= deadline:
            raise Refusal(
                f"{address} is not compacted yet: the pass goes on; `kafkalite topic describe"
                f" {address.topic}` shows its state"
            )
        line.draw(address, status)
        time.sleep(POLL_S)


def _result(
    address: PartitionAddress, before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "topic": address.topic,
        "partition": address.partition,
        "size_before": before["log_size"],
        "size_after": after["log_size"],
        "dirty_ratio_before": round(before["dirty_ratio"], 4),
        "dirty_ratio_after": round(after["dirty_ratio"], 4),
        "clean_offset": after["first_dirty_offset"],
        "passes": after["passes"] - before["passes"],
    }


def result_row(result: Mapping[str, Any]) -> list[str]:
    """Return the row of a result in the table of `kafkalite topic compact`."""
    return [
        result["topic"],
        str(result["partition"]),
        format_size(result["size_before"]),
        format_size(result["size_after"]),
        percent(result["dirty_ratio_before"]),
        percent(result["dirty_ratio_after"]),
        str(result["clean_offset"]),
    ]


def described_status(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return a partition's compaction as `kafkalite topic describe --json` prints it."""
    cleaned_ms = status["last_cleaned_ms"]
    return {
        "state": CleaningState(status["state"]).title,
        "reason": status["reason"],
        "dirty_ratio": round(status["dirty_ratio"], 4),
        "clean_offset": status["first_dirty_offset"],
        "last_cleaned_ms": None if cleaned_ms < 0 else cleaned_ms,
    }


def compaction_columns(compaction: Mapping[str, Any] | None) -> list[str]:
    """Return the columns of a partition in the table of `kafkalite topic describe`."""
    if compaction is None:
        return ["?", "?", "?"]
    cleaned_ms = compaction["last_cleaned_ms"]
    when = "never" if cleaned_ms is None else f"{age(time.time() - cleaned_ms / 1000)} ago"
    return [percent(compaction["dirty_ratio"]), when, compaction["state"]]


def percent(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"


def age(seconds: float) -> str:
    """Return a duration in its largest unit."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


class CompactionLine:
    """The partition that is being compacted, on stderr: a line that is redrawn on a terminal, or a
    line each time nothing has changed for STILL_S."""

    def __init__(self, total: int) -> None:
        self.done = 0
        self._total = total
        self._is_terminal = sys.stderr.isatty()
        self._draw_at = time.monotonic() + 1.0
        self._changed_at = time.monotonic()
        self._last: tuple[object, ...] = ()
        self._is_drawn = False

    def __enter__(self) -> CompactionLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def draw(self, address: PartitionAddress, status: Mapping[str, Any]) -> None:
        """Draw the line, unless it was drawn just before."""
        now = time.monotonic()
        state = CleaningState(status["state"]).title
        text = f"{self.done}/{self._total} partitions; {address}: {state}"
        if not self._is_terminal:
            self._print_if_still((text, status["log_size"], status["passes"]), text, now)
        elif now >= self._draw_at:
            self._draw_at, self._is_drawn = now + REDRAW_S, True
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def _print_if_still(self, seen: tuple[object, ...], text: str, now: float) -> None:
        if seen != self._last:
            self._last, self._changed_at = seen, now
        elif now - self._changed_at >= STILL_S:
            self._changed_at = now
            print(
                f"{text}; no change for {STILL_S:g} s: the pass is long, or the log cleaner hangs;"
                " see `kafkalite doctor` and the broker's log",
                file=sys.stderr, flush=True,
            )  # fmt: skip
