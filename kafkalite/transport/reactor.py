"""Reactor: the event loop of one process.

    read       ready sockets and descriptors are read, each up to a limit (ext/net/loop.pyx)
    handle     every whole frame is served by one call; then timers that are due
    commit     work that is batched over a tick: group commits, waiting fetches, index entries
    write      responses, in the order of the requests, one writev for each connection

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
from kafkalite.transport.slow_readers import SlowReaders
from kafkalite.transport.slow_ticks import SlowTicks

if TYPE_CHECKING:
    from kafkalite.clock import Clock

log = logging.getLogger("kafkalite.transport")

ACCEPTED_PER_TICK = 64
ACCEPT_PAUSE_MS = 100
"""Pause of accepting connections after descriptors have run out."""
BEGUN_MS_MAX = 30_000
"""Maximum time for one frame to arrive while others wait for memory; as clients' own timeouts."""
MAKE_ROOM_MS = 10
CLOSED_AT_ONCE = 64
"""Idle connections closed in one step to make room for files."""
LOOK_MS_MIN, LOOK_MS_MAX = 25, 5_000
"""Bounds of the interval at which connections are checked for idleness."""
COMPLAINT_MS = 10_000
COMPLAINTS_REMEMBERED = 1_000


class Limits(NamedTuple):
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

    def __init__(self, clock: Clock, limits: Limits | None = None) -> None:
        self.clock = clock
        self.limits = limits or Limits()
        self.accepted = self.turned_away = self.faults = 0
        self._loop = Loop(
            self._serving_failed,
            self._frame_refused,
            self.limits.frame_size_max,
            self.limits.in_flight_max,
            self.limits.queued_size_max,
            self.limits.held_size_max,
            self.limits.queued_sum_max,
        )
        self.slow_ticks = SlowTicks(clock)
        self._loop.slow = self.slow_ticks.add
        self._running = False
        self._settle: list[Callable[[], object]] = []
        self._timers: list[tuple[int, int, Timer]] = []
        self._timers_cancelled = 0
        self._order = itertools.count()
        self._doors: list[Door] = []
        self._connection_ids = itertools.count(1)
        self._addresses: Counter[str] = Counter()
        self.files_reserved = 0
        self._making_room = False
        self._complaints = Complaints(clock)
        self._slow_readers = SlowReaders(
            self._loop,
            self.limits.queued_sum_max,
            lambda callback: self.call_later(0, callback),
            lambda peer, why: self._complaints.about(peer.peer[0], why, kind="queued"),
        )
        self.call_later(self._look_ms, self._look_over)

    # Registration.

    def listen(self, listener: socket.socket, serve: Serve) -> None:
        """Accept connections from a listening socket and pass their frames to `serve`."""
        self.admit(
            listener,
            lambda accepted, address: self.welcome(accepted, address, serve),
            lambda: self.crowded,
        )

    def admit(
        self,
        listener: socket.socket,
        welcome: Callable[[socket.socket, object], object],
        crowded: Callable[[], bool],
    ) -> Door:
        """Call `welcome(accepted, address)` for each connection to a listening socket; none is
        accepted while `crowded()` is true."""
        door = Door(self, listener, welcome, crowded)
        self._doors.append(door)
        return door

    def door_closed(self, door: Door) -> None:
        """Forget a closed listener."""
        if door in self._doors:
            self._doors.remove(door)

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

    def at_settle(self, callback: Callable[[], object]) -> None:
        """Call `callback()` in every tick, after the handling and before responses are written."""
        self._settle.append(callback)

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
        self._loop.take_in(self._wait_ms(wait_ms_max))
        self._timers_due()
        for callback in self._settle:
            callback()
            self._loop.end_step(callback)
        self._loop.give_out()
        if self._loop.queued_size > self._slow_readers.size_max:
            self._slow_readers.close_soon()

    def close(self) -> None:
        """Close the listeners and every connection."""
        while self._doors:
            self._doors[-1].close()
        for connection in self.connections:
            connection.close()
        self._loop.close()

    def reconfigure(self, limits: Limits) -> None:
        """Apply new limits on connections; those on frames stay as they were."""
        self.limits = limits
        for door in self._doors:
            door.somebody_left()  # the new limits may allow more connections

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
        idle = [each for each in self.connections if not (each.awaited or each.begun)]
        idle.sort(key=lambda each: -each.still_ms(now_ms))
        for connection in idle[: min(count, CLOSED_AT_ONCE)]:
            why = "closed while idle: its descriptor is needed for files (see ulimit -n)"
            self._complaints.about(connection.peer[0], why, kind="files")
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
            "turned_away": self.turned_away,
            "faults": self.faults,
        }

    @property
    def tick_times(self) -> list[int]:
        """Total time of all ticks in ns, then the number of ticks in each bucket of a Histogram."""
        return self._loop.tick_times

    def end_step(self, api_key: int) -> None:
        """Attribute the time since the last step of this tick to a request, for slow ticks."""
        self._loop.end_step(api_key)

    def look_out(self) -> None:
        """Poll for a moment after this tick, as after responses for which clients waited."""
        self._loop.owed = True

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

    def welcome(self, accepted: socket.socket, address: object, serve: Serve) -> None:
        """Create a connection for an accepted socket, unless its address has too many."""
        peer = address_of(address)
        if self._addresses[peer[0]] >= self.limits.connections_per_address_max:
            self.turn_away(accepted, peer, "its address has as many connections as it may")
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
        local = address_of(accepted.getsockname())
        connection = Connection(next(self._connection_ids), peer, local)
        self._loop.adopt(connection, accepted.fileno(), serve)
        accepted.detach()
        self.accepted += 1
        self._addresses[peer[0]] += 1
        connection.on_close(lambda: self._gone(peer[0]))

    def turn_away(self, accepted: socket.socket, peer: Address, why: str) -> None:
        """Close a connection that was only just accepted, and log the reason."""
        accepted.close()
        self.turned_away += 1
        self._complaints.about(peer[0], f"turned a connection away: {why}", kind="door")

    def _gone(self, host: str) -> None:
        self._addresses[host] -= 1
        if not self._addresses[host]:
            del self._addresses[host]
        for door in self._doors:
            door.somebody_left()

    @property
    def crowded(self) -> bool:
        """True if the maximum of connections is reached."""
        return self._addresses.total() >= self.limits.connections_max

    @property
    def _look_ms(self) -> int:
        idle_ms = self.limits.idle_ms_max
        return max(LOOK_MS_MIN, min(LOOK_MS_MAX, idle_ms // 8 if idle_ms > 0 else LOOK_MS_MAX))

    def _look_over(self) -> None:
        now_ms = self.clock.monotonic_ms()
        idle_ms_max = self.limits.idle_ms_max
        for connection in self.connections:
            slow = connection.begun_ms(now_ms) >= BEGUN_MS_MAX and self._loop.short_of_room
            if slow:
                self._complaints.about(
                    connection.peer[0],
                    "closed: a request came too slowly while others waited",
                    kind="slow",
                )
            if slow or 0 < idle_ms_max <= connection.still_ms(now_ms):
                connection.close()
        self._loop.trim()
        self.reserve_files(self.files_reserved)
        self.call_later(self._look_ms, self._look_over)

    # Errors.

    def _serving_failed(self, connection: Connection, error: Exception) -> None:
        if isinstance(error, AssertionError | Fatal):
            raise error
        where = raised_at(error)
        if isinstance(error, Disconnect):
            self._complaints.about(connection.peer[0], f"closed: {error}", kind=where)
            connection.finish()
            return
        self.faults += 1
        self._complaints.about(
            connection.peer[0], "closed: serving it failed", kind=where, error=error
        )
        connection.close()

    def _frame_refused(self, connection: Connection, size: int) -> None:
        self._complaints.about(
            connection.peer[0],
            f"closed: it announced a request of {size} bytes "
            f"(socket.request.max.bytes={self.limits.frame_size_max})",
            kind="size",
        )


class Door:
    """A listening socket that stops accepting while there is no room for connections."""

    def __init__(
        self,
        reactor: Reactor,
        listener: socket.socket,
        welcome: Callable[[socket.socket, object], object],
        crowded: Callable[[], bool],
    ) -> None:
        self.reactor = reactor
        self.listener = listener
        self.welcome = welcome
        self.crowded = crowded
        self.is_open = False
        self.rest: Timer | None = None
        self.reserve = -1
        self.take_reserve()
        listener.setblocking(False)
        self.open()

    def open(self) -> None:
        self.rest = None
        if not self.is_open:
            self.is_open = True
            self.reactor.watch(self.listener.fileno(), self.accept)

    def shut(self) -> None:
        if self.is_open:
            self.is_open = False
            self.reactor.unwatch(self.listener.fileno())

    def close(self) -> None:
        self.shut()
        if self.rest is not None:
            self.rest.cancel()
        self.listener.close()
        self.give_reserve()
        self.reactor.door_closed(self)

    def somebody_left(self) -> None:
        if not self.is_open and self.rest is None:
            self.open()

    def accept(self) -> None:
        """Accept waiting connections, a limited number in each tick."""
        for _ in range(ACCEPTED_PER_TICK):
            if self.crowded():
                self.shut()  # clients wait in the backlog until a connection closes
                return
            try:
                accepted, address = self.listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self.refuse_one()
                    self.shut_for_now()
                    return
                continue  # the client closed while it waited (ECONNABORTED and similar)
            if self.reactor.short_of_descriptors(accepted.fileno()):
                why = "there are too few descriptors (see ulimit -n)"
                self.reactor.turn_away(accepted, address_of(address), why)
                self.shut_for_now()
                return
            try:
                self.welcome(accepted, address)
            except OSError as error:
                why = f"it cannot be served: {error.strerror}"
                self.reactor.turn_away(accepted, address_of(address), why)

    def refuse_one(self) -> None:
        """Use the reserve descriptor to accept and close one connection, so that its client learns
        of the refusal."""
        self.give_reserve()
        try:
            accepted, address = self.listener.accept()
            why = "there is no descriptor left (see ulimit -n)"
            self.reactor.turn_away(accepted, address_of(address), why)
        except OSError:
            pass  # another thread or process took the descriptor, or no client waits any more
        self.take_reserve()

    def take_reserve(self) -> None:
        try:
            self.reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.reserve = -1  # taken after the next pause

    def give_reserve(self) -> None:
        if self.reserve >= 0:
            os.close(self.reserve)
            self.reserve = -1

    def shut_for_now(self) -> None:
        self.shut()
        self.rest = self.reactor.call_later(ACCEPT_PAUSE_MS, self.open)


class Complaints:
    """Rate limit of log lines about peers: one line in ten seconds for each peer and kind, with the
    number of suppressed lines, so that a hostile peer can neither fill the disk nor hide others."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.made: dict[tuple[str, str], tuple[int, int]] = {}

    def about(self, host: str, sentence: str, *, kind: str, error: Exception | None = None) -> None:
        now_ms = self.clock.monotonic_ms()
        quiet_until_ms, kept_back = self.made.get((host, kind), (now_ms, 0))
        if now_ms < quiet_until_ms:
            self.made[host, kind] = (quiet_until_ms, kept_back + 1)
            return
        if len(self.made) >= COMPLAINTS_REMEMBERED:
            self.made.clear()
        self.made[host, kind] = (now_ms + COMPLAINT_MS, 0)
        more = f" ({kept_back} more such lines were kept back)" if kept_back else ""
        log.warning("%s: %s%s", host or "local peer", sentence, more, exc_info=error)


def raised_at(error: Exception) -> str:
    """Return the line of code that raised the error, as a kind for Complaints."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}" if at is not None else ""


def address_of(address: object) -> Address:
    """Return host and port of a socket address; a Unix socket has neither."""
    if isinstance(address, tuple):
        return str(address[0]), int(address[1])
    return "", 0
