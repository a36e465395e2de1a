"""CleanerThread: cleans the dirtiest log that the nodes offer, one after the other.

    OFFER to every node ─▶ the largest dirty ratio ─▶ TAKE_JOB ─▶ clean ─▶ CLEANED ─▶ SWAPPED
                 └ none is due: sleep for log.cleaner.backoff.ms, or until a node wakes it up

Each thread has connections of its own, one to each node.  An unexpected error is reported to the
node, which does not offer that log again; the thread goes on.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from kafkalite.cleaner.node_connection import NodeConnection
from kafkalite.cleaner.throttle import Throttle
from kafkalite.errors import KafkaError, KafkaStorageError, NetworkException, UnknownServerError
from kafkalite.protocol.schemas import cleaning
from kafkalite.storage.compaction import cleaning_files
from kafkalite.storage.compaction.cleaning import CleaningCancelled, clean
from kafkalite.storage.files.disk import DISK_FULL_ERRORS
from kafkalite.transport.run_directory import cleaner_path, local_path

log = logging.getLogger("kafkalite.cleaner")

RECONNECT_MS = 1_000
"""Maximum sleep: nodes may have been added or restarted."""

CANCEL_CHECK_S = 0.1
"""Interval of checks for a cancelled job while the throttle waits."""

LOST = "Log cleaner lost its connection to a node. node=%d error=%r"

RETRIABLE_ERRORS = DISK_FULL_ERRORS | {errno.EMFILE, errno.ENFILE, errno.ENOENT, errno.ENOMEM}


class CleanedBroker(NamedTuple):
    """The parts of a running broker's state that the cleaner needs."""

    cluster_id: str
    node_ids: tuple[int, ...]
    run_directory: Path


class BestOffer(NamedTuple):
    """The dirtiest log that was offered."""

    connection: NodeConnection
    fields: dict[str, Any]


class CleanerThread:
    """One thread of the cleaner; see the module."""

    def __init__(
        self,
        number: int,
        broker: Callable[[], CleanedBroker | None],
        throttle: Throttle,
    ) -> None:
        self.number = number
        self.threads_wanted = number + 1
        """log.cleaner.threads, as of the last offer."""
        self._broker = broker
        self._throttle = throttle
        self._connections: dict[int, NodeConnection] = {}
        self._backoff_ms = RECONNECT_MS

    def run(self, go_on: Callable[[], bool]) -> None:
        """Clean until `go_on` returns False."""
        waited_ms = 0
        while go_on():
            if waited_ms == 0:
                best = self._best_offer()
                if best is not None:
                    self._clean_offered(best)
                    continue
            waited_ms += self._sleep(min(RECONNECT_MS, self._backoff_ms - waited_ms))
            is_awake = any(each.is_awake for each in self._connections.values())
            if self._connect() or is_awake or waited_ms >= self._backoff_ms:
                waited_ms = 0
        for node_id in list(self._connections):
            self._disconnect(node_id)

    # -- connections -------------------------------------------------------------------------

    def _connect(self) -> bool:
        """Connect to the nodes that exist now, as far as they listen; return whether one is new."""
        broker = self._broker()
        is_new = False
        node_ids = set(broker.node_ids) if broker is not None else set()
        for node_id in self._connections.keys() - node_ids:
            self._disconnect(node_id)
        for node_id in sorted(node_ids - self._connections.keys()):
            assert broker is not None
            for path_of in (local_path, cleaner_path):
                path = path_of(broker.run_directory, node_id)
                if node_id not in self._connections and path.is_socket():
                    with contextlib.suppress(KafkaError):
                        connection = NodeConnection(path, broker.cluster_id, node_id)
                        self._connections[node_id] = connection
                        is_new = True
        return is_new

    def _disconnect(self, node_id: int) -> None:
        self._connections.pop(node_id).close()

    def _sleep(self, timeout_ms: int) -> int:
        """Sleep until a node sends a packet; return the time given."""
        waiting = select.poll()
        for connection in self._connections.values():
            waiting.register(connection, select.POLLIN)
        if waiting.poll(max(1, timeout_ms)):
            for node_id, connection in list(self._connections.items()):
                try:
                    connection.read_available()
                except KafkaError:
                    self._disconnect(node_id)
        return max(1, timeout_ms)

    # -- offers and jobs ---------------------------------------------------------------------

    def _best_offer(self) -> BestOffer | None:
        self._connect()
        best: BestOffer | None = None
        offers = []
        for node_id, connection in list(self._connections.items()):
            connection.is_awake = False
            try:
                offer = cleaning.OFFER(request_id=connection.next_id())
                fields, _ = connection.request(offer, cleaning.OFFERED)
            except KafkaError as error:
                log.info(LOST, node_id, str(error))
                self._disconnect(node_id)
                continue
            offers.append(fields)
            if fields["partition"] >= 0 and (
                best is None or fields["dirty_ratio"] > best.fields["dirty_ratio"]
            ):
                best = BestOffer(connection, fields)
        if offers:
            # A node may have a value of its own.
            self.threads_wanted = max(each["threads"] for each in offers)
            self._backoff_ms = max(1, min(each["backoff_ms"] for each in offers))
            self._throttle.bytes_per_second = min(each["bytes_per_second"] for each in offers)
        return best

    def _clean_offered(self, best: BestOffer) -> None:
        """Take the job of an offer, clean, and wait for the swap."""
        connection = best.connection
        request_id = connection.next_id()
        take = cleaning.TAKE_JOB(
            request_id=request_id,
            topic_id=best.fields["topic_id"],
            partition=best.fields["partition"],
        )
        descriptor = -1
        try:
            fields, descriptor = connection.request(take, cleaning.JOB)
            if fields["error_code"]:
                log.info("Log cannot be cleaned now. error=%r", fields["error_message"])
                return
            error = self._clean(connection, request_id, descriptor)
            cleaned = cleaning.CLEANED(request_id=request_id, **error)
            swapped, _ = connection.request(cleaned, cleaning.SWAPPED, timeout_ms=None)
            if swapped["error_code"]:
                log.warning(
                    "Cleaned segments were refused. node=%d error=%r",
                    connection.node_id, swapped["error_message"],
                )  # fmt: skip
        except NetworkException as lost:
            log.info(LOST, connection.node_id, str(lost))
            if self._connections.get(connection.node_id) is connection:
                self._disconnect(connection.node_id)
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _clean(
        self, connection: NodeConnection, request_id: int, descriptor: int
    ) -> dict[str, Any]:
        """Clean by the job in a file and write the result there; return the fields of CLEANED."""

        def throttle(size: int) -> None:
            wait_s = self._throttle.spend(size)
            while True:
                connection.read_available()
                if request_id in connection.cancelled:
                    raise CleaningCancelled(connection.cancelled[request_id])
                if wait_s <= 0:
                    return
                time.sleep(min(wait_s, CANCEL_CHECK_S))
                wait_s -= CANCEL_CHECK_S

        try:
            result = clean(cleaning_files.read_job(descriptor), throttle)
            cleaning_files.write_result(descriptor, result)
        except NetworkException:
            raise
        except CleaningCancelled as cancelled:
            return _failure(KafkaStorageError(str(cancelled)), retriable=True)
        except OSError as error:
            retriable = error.errno in RETRIABLE_ERRORS
            return _failure(KafkaStorageError(f"{error.strerror}"), retriable=retriable)
        except MemoryError:
            return _failure(UnknownServerError("Not enough memory."), retriable=True)
        except KafkaStorageError as damaged:
            return _failure(damaged, retriable=False)
        except Exception as error:
            log.exception("Cleaning failed. node=%d", connection.node_id)
            return _failure(UnknownServerError(repr(error)), retriable=False)
        return {"error_code": 0, "error_message": None, "retriable": False}


def _failure(error: KafkaError, *, retriable: bool) -> dict[str, Any]:
    return {"error_code": error.code, "error_message": str(error)[:500], "retriable": retriable}
