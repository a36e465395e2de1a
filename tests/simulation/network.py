"""The network of a simulated cluster: the bus between supervisor and workers, in memory.

Messages wait in ordered queues until the test delivers them, so it can lose, duplicate and reorder
them, and cut a worker off.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kafkalite.protocol.schemas import bus
from kafkalite.protocol.schemas.bus import TypedRecord


class MemoryBus:
    """Ordered queues of frames between the supervisor and each worker."""

    def __init__(self) -> None:
        self.server: Callable[[bytes, TypedRecord], object] | None = None
        self.connected: set[bytes] = set()
        self.to_server: dict[bytes, deque[bytes]] = {}
        self.to_worker: dict[bytes, deque[bytes]] = {}
        self.cut: set[bytes] = set()
        """Identities of workers that cannot connect to the supervisor now."""

    def send_down(self, identity: bytes, message: TypedRecord, *, quiet: bool = False) -> bool:
        if identity not in self.connected:
            return False
        self.to_worker[identity].append(bus.write_frame(message))
        return True

    def send_up(self, identity: bytes, message: TypedRecord) -> bool:
        self.to_server.setdefault(identity, deque()).append(bus.write_frame(message))
        return True

    def lose_server(self) -> None:
        """Drop the supervisor's connections and the messages queued for it."""
        self.server = None
        self.connected.clear()
        self.to_server.clear()

    def lose_worker(self, identity: bytes) -> None:
        """Drop a worker's connection; messages it has sent may still arrive."""
        self.connected.discard(identity)
        self.to_worker.pop(identity, None)


class BusEnd:
    """The supervisor's end of the bus: replaces BusServer."""

    def __init__(self, memory: MemoryBus, received: Callable[[bytes, TypedRecord], object]) -> None:
        self._memory = memory
        memory.server = received
        self.send = memory.send_down

    def close(self) -> None:
        self._memory.lose_server()
