"""Reactor: the event loop of one process.

    read       ready sockets and descriptors are read, each up to a limit (ext/net/loop.pyx)
    handle     every whole frame is handled by one call; then timers that are due
    commit     work that is batched over a tick: group commits, waiting fetches, index entries
    write      responses, in the order of the requests, by sendmsg and sendfile

The loop runs at its own pace, so everything that happens in one tick shares its flush, its wake-ups
and its writes.  Code that is called here must not block.  A Reactor is used by one thread only;
other threads reach it through a descriptor that it watches.

The Reactor also limits connections, in total and for each address, and reserves descriptors for
files, so that many connections never stop a log from rolling.  The reserve grows with the expected
number of files (`reserve_files`); if connections use part of it, those that have been idle longest
are closed.

Left out: a shorter time-out for connections that never send a request, and a smaller frame bound
before authentication; both come with authentication.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import logging
import os
import resource
import socket
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kafkalite._ext.loop import Loop
from kafkalite.errors import Fatal
from kafkalite.transport.connection import Address, Connection, Disconnect, Serve
from kafkalite.transport.rate_limited_log import RateLimitedLog, raised_at
from kafkalite.transport.slow_readers import SlowReaders
from kafkalite.transport.slow_ticks import SlowTicks

if TYPE_CHECKING:
    from kafkalite.clock import Clock

log = logging.getLogger("kafkalite.transport")

ACCEPTED_PER_TICK = 64
ACCEPT_PAUSE_MS = 100
"""Pause of accepting connections after descriptors have run out."""
FRAME_TIMEOUT_MS = 30_000
"""Maximum time for one frame to arrive while others wait for memory; as clients' own timeouts."""
MAKE_ROOM_MS = 10
CLOSED_AT_ONCE = 64
"""Idle connections closed in one step to make room for files."""
IDLE_CHECK_MS_MIN, IDLE_CHECK_MS_MAX = 25, 5_000
"""Bounds of the interval at which connections are checked for idleness."""


class ReactorLimits(NamedTuple):
    """The limits of a Reactor; one that may be disabled is so at 0 or below."""

    frame_size_max: int = 100 << 20
    in_flight_max: int = 100
    """Requests of one connection without a response."""
    queued_size_max: int = 4 << 20
    """Bytes of responses in memory that one peer has not read; file slices do not count."""
    queued_sum_max: int = 256 << 20
    """Bytes of responses in memory, of all connections; see transport/slow_readers.py."""
    held_size_max: int = 512 << 20
    """Bytes of frames that have partly arrived, of all connections."""
    idle_ms_max: int = 600_000
    connections_max: int = 2**31 - 1
    connections_per_address_max: int = 2**31 - 1
    descriptors_reserved: int = 64
    """Descriptors kept for files, in addition to those of `Reactor.reserve_files`."""
    send_buffer_size: int = -1
    receive_buffer_size: int = -1


class Timer:
    """A scheduled call, which may be cancelled."""

    __slots__ = ("_reactor", "callback")

    def __init__(self, reactor: Reactor, callback: Callable[[], object]) -> None:
        self._reactor = reactor
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Cancel the call; does nothing if it has happened."""
        if self.callback is not None:
            self.callback = None
            self._reactor.timer_cancelled()


class Reactor:
    """The event loop of one process; see the module."""

    def __init__(self, clock: Clock, limits: ReactorLimits | None = None) -> None:
        self.clock = clock
        self.limits = limits or ReactorLimits()
        self.accepted = self.rejected = self.errors = 0
        self._loop = Loop(
            self._handler_failed,
            self._frame_too_large,
            self.limits.frame_size_max,
            self.limits.in_flight_max,
            self.limits.queued_size_max,
            self.limits.held_size_max,
            self.limits.queued_sum_max,
        )
        self.slow_ticks = SlowTicks(clock)
        self._loop.slow = self.slow_ticks.add
        self._running = False
        self._commit_callbacks: list[Callable[[], object]] = []
        self._timers: list[tuple[int, int, Timer]] = []
        self._timers_cancelled = 0
        self._order = itertools.count()
        self._listeners: list[SocketListener] = []
        self._connection_ids = itertools.count(1)
        self._addresses: Counter[str] = Counter()
        self.files_reserved = 0
        self._making_room = False
        self._peer_log = RateLimitedLog(clock)
        self._slow_readers = SlowReaders(
            self._loop,
            self.limits.queued_sum_max,
            lambda callback: self.call_later(0, callback),
            lambda peer, why: self._peer_log.warn(peer.peer[0], why, kind="queued"),
        )
        self.call_later(self._idle_check_ms, self._check_connections)

    # Registration.

    def listen(self, listener: socket.socket, serve: Serve) -> None:
        """Accept connections from a listening socket and pass their frames to `serve`."""
        self.admit(
            listener,
            lambda accepted, address: self.open_connection(accepted, address, serve),
            lambda: self.is_full,
        )

    def admit(
        self,
        listener: socket.socket,
        open_connection: Callable[[socket.socket, object], object],
        is_full: Callable[[], bool],
    ) -> SocketListener:
        """Call `open_connection(accepted, address)` for each connection to a listening socket.

        None is accepted while `is_full()` is true.
        """
        admitted = SocketListener(self, listener, open_connection, is_full)
        self._listeners.append(admitted)
        return admitted

    def remove_listener(self, listener: SocketListener) -> None:
        """Forget a closed listener."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def watch(self, descriptor: int, callback: Callable[[], object]) -> None:
        """Call `callback()` in every tick in which the descriptor is readable."""
        self._loop.watch(descriptor, callback)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching a descriptor; call this before closing it."""
        self._loop.unwatch(descriptor)

    def call_later(self, delay_ms: int, callback: Callable[[], object]) -> Timer:
        """Call `callback()` once, after this many milliseconds."""
        timer = Timer(self, callback)
        due_ms = self.clock.monotonic_ms() + max(0, delay_ms)
        heapq.heappush(self._timers, (due_ms, next(self._order), timer))
        return timer

    @property
    def tick_number(self) -> int:
        """The number of the current tick."""
        return self._loop.ticks

    def at_commit(self, callback: Callable[[], object]) -> None:
        """Call `callback()` in every tick, after the handling and before responses are written."""
        self._commit_callbacks.append(callback)

    def run(self) -> None:
        """Run ticks until `stop` is called; responses made by then are written."""
        self._running = True
        while self._running:
            self.tick()

    def stop(self) -> None:
        """End `run` after this tick."""
        self._running = False

    def tick(self, wait_ms_max: int = -1) -> None:
        """Run one tick: read and handle, commit, write."""
        self._loop.read_requests(self._wait_ms(wait_ms_max))
        self._timers_due()
        for callback in self._commit_callbacks:
            callback()
            self._loop.end_step(callback)
        self._loop.write_responses()
        if self._loop.queued_size > self._slow_readers.size_max:
            self._slow_readers.close_soon()

    def close(self) -> None:
        """Close the listeners and every connection."""
        while self._listeners:
            self._listeners[-1].close()
        for connection in self.connections:
            connection.close()
        self._loop.close()

    def reconfigure(self, limits: ReactorLimits) -> None:
        """Apply new limits on connections; those on frames stay as they were."""
        self.limits = limits
        for listener in self._listeners:
            listener.connection_closed()  # the new limits may allow more connections

    def reserve_files(self, count: int) -> None:
        """Keep descriptors for this many files, but at most half of all; idle connections that use
        some of these are closed soon."""
        self.files_reserved = count
        if not self._making_room and self._addresses.total() > self.connections_room:
            self._making_room = True
            self.call_later(MAKE_ROOM_MS, self._make_room)

    @property
    def connections_room(self) -> int:
        """Number of connections that leave enough descriptors for files."""
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        room = descriptors - self.limits.descriptors_reserved
        return room - min(self.files_reserved, room // 2)

    def short_of_descriptors(self, accepted: int) -> bool:
        """Return True if the descriptor of one more connection is needed for files."""
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if accepted >= descriptors - self.limits.descriptors_reserved:
            return True
        return self._addresses.total() >= self.connections_room

    def _make_room(self) -> None:
        """Close the connections that have been idle longest, if there are too many."""
        self._making_room = False
        count = self._addresses.total() - self.connections_room
        if count <= 0:
            return
        now_ms = self.clock.monotonic_ms()
        idle = [
            each
            for each in self.connections
            if not (each.has_deferred or each.has_buffered_bytes)
        ]
        idle.sort(key=lambda each: -each.idle_ms(now_ms))
        for connection in idle[: min(count, CLOSED_AT_ONCE)]:
            why = "Idle connection is closed: its descriptor is needed for files; raise ulimit -n"
            self._peer_log.warn(connection.peer[0], why, kind="files")
            connection.close()
        if idle[CLOSED_AT_ONCE:]:
            self.reserve_files(self.files_reserved)

    # Counters.

    @property
    def connections(self) -> list[Connection]:
        """The open connections."""
        return list(self._loop.channels())

    @property
    def counters(self) -> dict[str, int]:
        """Totals since the start and current sizes, by name."""
        loop = self._loop
        return {
            "ticks": loop.ticks,
            "reads": loop.reads,
            "frames": loop.frames,
            "bytes_in": loop.bytes_in,
            "bytes_out": loop.bytes_out,
            "bytes_held": loop.held_size,
            "bytes_queued": loop.queued_size,
            "slow_readers_closed": self._slow_readers.closed,
            "views_kept": loop.views_kept,
            "connections": self._addresses.total(),
            "accepted": self.accepted,
            "turned_away": self.rejected,
            "faults": self.errors,
        }

    @property
    def tick_times(self) -> list[int]:
        """Total time of all ticks in ns, then the number of ticks in each bucket of a Histogram."""
        return self._loop.tick_times

    def end_step(self, api_key: int) -> None:
        """Attribute the time since the last step of this tick to a request, for slow ticks."""
        self._loop.end_step(api_key)

    def request_busy_poll(self) -> None:
        """Poll briefly before the next sleep, as after deferred responses."""
        self._loop.busy_poll = True

    # Timers.

    def _wait_ms(self, wait_ms_max: int) -> int:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
            self._timers_cancelled -= 1
        if not self._timers:
            return wait_ms_max
        wait_ms = max(0, self._timers[0][0] - self.clock.monotonic_ms())
        return wait_ms if wait_ms_max < 0 else min(wait_ms, wait_ms_max)

    def _timers_due(self) -> None:
        now_ms = self.clock.monotonic_ms()
        while self._timers and self._timers[0][0] <= now_ms:
            timer = heapq.heappop(self._timers)[2]
            callback, timer.callback = timer.callback, None
            if callback is None:
                self._timers_cancelled -= 1
            else:
                callback()
                self._loop.end_step(callback)

    def timer_cancelled(self) -> None:
        """Remove cancelled timers when they are most of the heap."""
        self._timers_cancelled += 1
        if self._timers_cancelled > 64 and 2 * self._timers_cancelled > len(self._timers):
            self._timers = [entry for entry in self._timers if entry[2].callback is not None]
            heapq.heapify(self._timers)
            self._timers_cancelled = 0

    # Opening and closing connections.

    def open_connection(self, accepted: socket.socket, address: object, serve: Serve) -> None:
        """Create a connection for an accepted socket, unless its address has too many."""
        peer = address_of(address)
        if self._addresses[peer[0]] >= self.limits.connections_per_address_max:
            self.reject(accepted, peer, "its address has the maximum of connections")
            return
        accepted.setblocking(False)
        if accepted.family != socket.AF_UNIX:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.limits.send_buffer_size > 0:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.limits.send_buffer_size)
        if self.limits.receive_buffer_size > 0:
            accepted.setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVBUF, self.limits.receive_buffer_size
            )
        connection = self._adopt(accepted, peer, serve)
        self.accepted += 1
        self._addresses[peer[0]] += 1
        connection.on_close(lambda: self._connection_closed(peer[0]))

    def open_peer_connection(self, accepted: socket.socket, serve: Serve) -> None:
        """Create a connection for an accepted socket of another node; no limits apply to it."""
        accepted.setblocking(False)
        self._adopt(accepted, ("", 0), serve)

    def _adopt(self, accepted: socket.socket, peer: Address, serve: Serve) -> Connection:
        local = address_of(accepted.getsockname())
        connection = Connection(next(self._connection_ids), peer, local)
        self._loop.adopt(connection, accepted.fileno(), serve)
        accepted.detach()
        return connection

    def reject(self, accepted: socket.socket, peer: Address, why: str) -> None:
        """Close a connection that was only just accepted, and log the reason."""
        accepted.close()
        self.rejected += 1
        self._peer_log.warn(peer[0], f"Connection is rejected: {why}", kind="accept")

    def _connection_closed(self, host: str) -> None:
        self._addresses[host] -= 1
        if not self._addresses[host]:
            del self._addresses[host]
        for listener in self._listeners:
            listener.connection_closed()

    @property
    def is_full(self) -> bool:
        """True if the maximum of connections is reached."""
        return self._addresses.total() >= self.limits.connections_max

    @property
    def _idle_check_ms(self) -> int:
        idle_ms = self.limits.idle_ms_max
        if idle_ms <= 0:
            return IDLE_CHECK_MS_MAX
        return max(IDLE_CHECK_MS_MIN, min(IDLE_CHECK_MS_MAX, idle_ms // 8))

    def _check_connections(self) -> None:
        now_ms = self.clock.monotonic_ms()
        idle_ms_max = self.limits.idle_ms_max
        for connection in self.connections:
            slow = connection.frame_age_ms(now_ms) >= FRAME_TIMEOUT_MS and self._loop.short_of_room
            if slow:
                self._peer_log.warn(
                    connection.peer[0],
                    "Connection is closed: a request arrived too slowly while others waited",
                    kind="slow",
                )
            if slow or 0 < idle_ms_max <= connection.idle_ms(now_ms):
                connection.close()
        self._loop.trim()
        self.reserve_files(self.files_reserved)
        self.call_later(self._idle_check_ms, self._check_connections)

    # Errors.

    def _handler_failed(self, connection: Connection, error: Exception) -> None:
        if isinstance(error, AssertionError | Fatal):
            raise error
        where = raised_at(error)
        if isinstance(error, Disconnect):
            self._peer_log.warn(connection.peer[0], f"Connection is closed: {error}", kind=where)
            connection.finish()
            return
        self.errors += 1
        self._peer_log.warn(
            connection.peer[0],
            "Connection is closed: handling its request failed",
            kind=where,
            error=error,
        )
        connection.close()

    def _frame_too_large(self, connection: Connection, size: int) -> None:
        self._peer_log.warn(
            connection.peer[0],
            f"Connection is closed: it announced a request of {size} bytes, more than"
            f" socket.request.max.bytes={self.limits.frame_size_max}",
            kind="size",
        )


class SocketListener:
    """A listening socket that stops accepting while there is no room for connections."""

    def __init__(
        self,
        reactor: Reactor,
        listener: socket.socket,
        open_connection: Callable[[socket.socket, object], object],
        is_full: Callable[[], bool],
    ) -> None:
        self.reactor = reactor
        self.listener = listener
        self.open_connection = open_connection
        self.is_full = is_full
        self.is_open = False
        self.pause: Timer | None = None
        self.reserve = -1
        self.open_reserve()
        listener.setblocking(False)
        self.open()

    def open(self) -> None:
        self.pause = None
        if not self.is_open:
            self.is_open = True
            self.reactor.watch(self.listener.fileno(), self.accept)

    def stop_accepting(self) -> None:
        if self.is_open:
            self.is_open = False
            self.reactor.unwatch(self.listener.fileno())

    def close(self) -> None:
        self.stop_accepting()
        if self.pause is not None:
            self.pause.cancel()
        self.listener.close()
        self.close_reserve()
        self.reactor.remove_listener(self)

    def connection_closed(self) -> None:
        """Accept again after a connection was closed."""
        if not self.is_open and self.pause is None:
            self.open()

    def accept(self) -> None:
        """Accept waiting connections, a limited number in each tick."""
        for _ in range(ACCEPTED_PER_TICK):
            if self.is_full():
                self.stop_accepting()  # clients wait in the backlog until a connection closes
                return
            try:
                accepted, address = self.listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self.reject_one()
                    self.pause_accepting()
                    return
                continue  # the client closed while it waited (ECONNABORTED and similar)
            if self.reactor.short_of_descriptors(accepted.fileno()):
                why = "too few file descriptors; raise ulimit -n"
                self.reactor.reject(accepted, address_of(address), why)
                self.pause_accepting()
                return
            try:
                self.open_connection(accepted, address)
            except OSError as error:
                why = f"its socket cannot be set up: {error.strerror}"
                self.reactor.reject(accepted, address_of(address), why)

    def reject_one(self) -> None:
        """Use the reserve descriptor to accept and close one connection, so that its client learns
        of the refusal."""
        self.close_reserve()
        try:
            accepted, address = self.listener.accept()
            why = "no file descriptor is left; raise ulimit -n"
            self.reactor.reject(accepted, address_of(address), why)
        except OSError:
            pass  # another thread or process took the descriptor, or no client waits any more
        self.open_reserve()

    def open_reserve(self) -> None:
        try:
            self.reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.reserve = -1  # taken after the next pause

    def close_reserve(self) -> None:
        if self.reserve >= 0:
            os.close(self.reserve)
            self.reserve = -1

    def pause_accepting(self) -> None:
        self.stop_accepting()
        self.pause = self.reactor.call_later(ACCEPT_PAUSE_MS, self.open)


def address_of(address: object) -> Address:
    """Return host and port of a socket address; a Unix socket has neither."""
    if isinstance(address, tuple):
        return str(address[0]), int(address[1])
    return "", 0
