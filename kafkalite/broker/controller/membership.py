"""Membership: the supervisor's view of the workers.

    launcher   ─▶ Nodes        the running processes, each with its incarnation
    worker     ─▶ Hello        ─▶ Welcome: the end of the metadata log; deltas follow
    worker     ─▶ Heartbeat    the metadata offset it has applied; extends its session
    metadata   ─▶ changed      ─▶ Delta to every worker that was welcomed
    worker     ─▶ Forward      ─▶ Answer, as if the client had connected here

Only messages of the incarnation that the launcher started last are accepted; those of an older one
are refused.  Until it is welcomed a worker sends only Hello, so no request of it is lost before
that.  A worker whose session has expired is fenced: the launcher kills and reaps it before it
starts another one on the same files, so two processes never write them.  A worker whose process is
running is busy, and its session is extended (coordination/sessions.py).

After a restart the supervisor knows no worker.  It sends Welcome to each process that the launcher
reports, repeatedly until it could be queued, so metadata changes go out again at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kafkalite.broker.error_responses import MESSAGE_LENGTH_MAX
from kafkalite.broker.later import Later
from kafkalite.broker.served_apis import SERVED, ServingNode
from kafkalite.coordination.image import SUPERVISOR_ID
from kafkalite.coordination.leader_epochs import EpochRenewal
from kafkalite.coordination.producer_ids import Block
from kafkalite.errors import Fatal, InvalidRequest, KafkaError
from kafkalite.protocol.schemas import bus, internal
from kafkalite.transport.bus import Peer, identity_of, peer_of
from kafkalite.transport.connection import Disconnect

if TYPE_CHECKING:
    from kafkalite.broker.controller.local_controller import LocalController
    from kafkalite.broker.dispatch import Dispatcher
    from kafkalite.coordination.sessions import NodeSessions
    from kafkalite.protocol.schemas.bus import Record
    from kafkalite.transport.reactor import Reactor

log = logging.getLogger("kafkalite.broker")

MADE_WAIT_MS_MAX = 5_000
"""Maximum wait for workers to apply a decision; the decision holds anyway."""
LOOK_MS = 50
"""Interval between checks for expired sessions and workers that were not welcomed."""
AWAY_MS = 500
"""A check that is late by this much means that this process itself did not run."""

STARTING, READY, ENDING, BACKOFF = "starting", "ready", "ending", "backoff"


class Send(Protocol):
    """Queues a message to a worker (BusServer.send)."""

    def __call__(self, identity: bytes, message: Record, *, quiet: bool = False) -> bool:
        """Return False if the worker is not connected or its queue is full."""


class Process(NamedTuple):
    """A node's process, as reported by the launcher."""

    incarnation: int
    pid: int
    host: str
    port: int
    state: str


@dataclass(slots=True)
class Member:
    """A worker of the current incarnation, with the state from its heartbeats."""

    peer: Peer
    welcomed: bool = False
    made_offset: int = -1
    led_count: int = 0
    size: int = 0
    unmade: frozenset[tuple[bytes, int]] = frozenset()


@dataclass(slots=True, eq=False)
class Waiting:
    """A response that waits until all workers have applied the metadata log up to an offset."""

    end_offset: int
    later: Later[None]
    timer: Any = None
    for_new_nodes: bool = False


class Membership:
    """The supervisor's end of the bus."""

    def __init__(
        self,
        controller: LocalController,
        dispatcher: Dispatcher,
        sessions: NodeSessions,
        reactor: Reactor,
        *,
        send: Send,
        fence: Callable[[Peer], None],
        is_running: Callable[[int], bool],
        incarnation: int,
        heartbeat_ms: int,
    ) -> None:
        self.processes: dict[int, Process] = {}
        self.members: dict[int, Member] = {}
        self.heard: list[Callable[[], object]] = []
        """Called after each heartbeat."""
        self.refused = 0
        """Number of refused messages, such as those of an older incarnation."""
        self._controller = controller
        self._dispatcher = dispatcher
        self._sessions = sessions
        self._reactor = reactor
        self._send = send
        self._fence = fence
        self._is_running = is_running
        self._busy: set[int] = set()
        self._incarnation = incarnation
        self._heartbeat_ms = heartbeat_ms
        self._waiting: list[Waiting] = []
        self._looked_ms = reactor.clock.monotonic_ms()
        controller.on_change(self._changed)
        controller.applied_everywhere = self.applied_everywhere
        reactor.call_later(LOOK_MS, self._look)

    # -- processes and sessions --------------------------------------------------------------

    def processes_are(self, processes: dict[int, Process]) -> None:
        """Apply the launcher's list of all worker processes."""
        for node_id, member in list(self.members.items()):
            process = processes.get(node_id)
            if (
                process is None
                or process.state == BACKOFF  # it is dead, and the next one not started yet
                or process.incarnation != member.peer.incarnation
            ):
                self._sessions.ended(*member.peer)
                del self.members[node_id]
        for node_id, process in processes.items():
            if process.state != BACKOFF and node_id not in self.members:
                peer = Peer(node_id, process.incarnation)
                self._sessions.started(*peer)
                self.members[node_id] = Member(peer)
            if process.state in (READY, ENDING) and not self._had_served(node_id, process):
                # Its listener responds, so its session can expire from now on.
                now_ms = self._reactor.clock.monotonic_ms()
                self._sessions.heard(node_id, process.incarnation, now_ms)
        self.processes = processes
        self._release()

    def _had_served(self, node_id: int, process: Process) -> bool:
        known = self.processes.get(node_id)
        return known is not None and known[:2] == process[:2] and known.state in (READY, ENDING)

    def has_made(self, node_id: int, topic_id: bytes, partition: int, end_offset: int) -> bool:
        """Return whether a node leads a partition that it was assigned before `end_offset`."""
        member = self.members.get(node_id)
        return (
            member is not None
            and member.made_offset >= end_offset
            and (topic_id, partition) not in member.unmade
        )

    def _look(self) -> None:
        now_ms = self._reactor.clock.monotonic_ms()
        late_ms = now_ms - self._looked_ms - LOOK_MS
        if late_ms >= AWAY_MS:
            # While this process was stopped it received nothing: extend all sessions.
            self._sessions.excuse(late_ms)
        self._looked_ms = now_ms
        for node_id, incarnation in self._sessions.silent(now_ms, self._is_busy):
            log.warning("Node %d missed its heartbeats and is fenced. node=%d", node_id, node_id)
            self._fence(Peer(node_id, incarnation))
        for member in self.members.values():
            if not member.welcomed:
                self._welcome(member)
        self._reactor.call_later(LOOK_MS, self._look)

    def _is_busy(self, node_id: int) -> bool:
        """Return whether a node that missed its heartbeats has a running process."""
        process = self.processes.get(node_id)
        if process is None or not self._is_running(process.pid):
            return False
        if node_id not in self._busy:
            self._busy.add(node_id)
            log.warning(
                "Node %d misses its heartbeats, but its process runs; waiting."
                " node=%d pid=%d tick_timeout_ms=%d",
                node_id, node_id, process.pid, self._sessions.tick_timeout_ms,
            )  # fmt: skip
        return True

    def _welcome(self, member: Member) -> None:
        member.welcomed = self._send(
            identity_of(member.peer),
            bus.WELCOME(
                incarnation=self._incarnation,
                image_offset=self._controller.log.end_offset,
                heartbeat_ms=self._heartbeat_ms,
            ),
            quiet=True,  # it may not be connected to the bus yet
        )

    # -- messages from workers ---------------------------------------------------------------

    def received(self, identity: bytes, message: Record) -> None:
        """Handle a worker's message; refuse one of an older incarnation."""
        peer = peer_of(identity)
        member = self.members.get(peer.node_id) if peer is not None else None
        if peer is None or (member is not None and member.peer.incarnation > peer.incarnation):
            self._refuse(f"a {message.kind} of {identity!r}, which does not run")
            return
        if member is None or member.peer != peer:
            return  # it is earlier than the launcher's report, after which it is welcomed
        take = self._RECEIVED.get(message.kind.key)
        if take is None:
            self._refuse(f"a {message.kind} of {identity!r}, which is not for the supervisor")
            return
        self._sessions.heard(*peer, self._reactor.clock.monotonic_ms())
        self._busy.discard(peer.node_id)
        take(self, member, message.fields)

    def _refuse(self, what: str) -> None:
        self.refused += 1
        if self.refused & (self.refused - 1) == 0:  # log the first, second, fourth … only
            log.warning("refused: %s (%d so far)", what, self.refused)

    def _hello(self, member: Member, fields: dict[str, Any]) -> None:
        self._welcome(member)

    def _heartbeat(self, member: Member, fields: dict[str, Any]) -> None:
        if fields["image_offset"] > self._controller.log.end_offset:
            self._refuse(f"a {bus.HEARTBEAT} of node {member.peer.node_id}, which knows the future")
            return
        member.made_offset = fields["image_offset"]
        member.led_count = fields["led_count"]
        member.size = fields["size"]
        member.unmade = frozenset(
            (entry["topic_id"], entry["partition"]) for entry in fields["unmade"]
        )
        self._release()
        for told in self.heard:
            told()

    def _forward(self, member: Member, fields: dict[str, Any]) -> None:
        request_id, peer = fields["request_id"], member.peer

        def answer(frame: bytes | None, fault: KafkaError | None = None) -> None:
            self._send(
                identity_of(peer),
                bus.ANSWER(
                    request_id=request_id,
                    error_code=fault.code if fault is not None else 0,
                    error_message=str(fault)[:MESSAGE_LENGTH_MAX] if fault is not None else None,
                    frame=frame,
                ),
            )

        requester = Requester(
            (fields["peer_host"], fields["peer_port"]),
            (fields["local_host"], fields["local_port"]),
            answer,
        )
        api_key = int.from_bytes(fields["frame"][:2], "big")
        handler = SERVED.get(api_key)
        if handler is None or handler.at is not ServingNode.CONTROLLER:
            answer(None, InvalidRequest("Only what the controller answers comes from other nodes."))
            return
        try:
            chunks = self._dispatcher.serve(requester, memoryview(fields["frame"]))
        except (AssertionError, Fatal):
            raise
        except Disconnect as reason:
            answer(None, InvalidRequest(str(reason)))
        except Exception:
            log.exception("a request of %s, forwarded by node %d, failed", requester.peer, peer[0])
            requester.close()
        else:
            if isinstance(chunks, list):
                requester.send(chunks)
            self._reactor.end_step(api_key)

    def _allocate_ids(self, member: Member, fields: dict[str, Any]) -> None:
        def answer(block: Block | None, fault: KafkaError | None) -> None:
            self._send(
                identity_of(member.peer),
                bus.IDS(
                    request_id=fields["request_id"],
                    error_code=fault.code if fault is not None else 0,
                    error_message=str(fault)[:MESSAGE_LENGTH_MAX] if fault is not None else None,
                    first_id=block.first_id if block is not None else -1,
                    end_id=block.end_id if block is not None else -1,
                ),
            )

        self._controller.allocate_producer_ids(member.peer.node_id).then(answer)

    def _renew_epochs(self, member: Member, fields: dict[str, Any]) -> None:
        wanted = [EpochRenewal(**partition) for partition in fields["partitions"]]
        self._controller.renew_epochs(member.peer.node_id, wanted)

    _RECEIVED: dict[int, Callable[[Membership, Member, dict[str, Any]], None]] = {
        bus.HELLO.key: _hello,
        bus.HEARTBEAT.key: _heartbeat,
        bus.FORWARD.key: _forward,
        bus.ALLOCATE_IDS.key: _allocate_ids,
        bus.RENEW_EPOCHS.key: _renew_epochs,
    }

    # -- messages to workers -----------------------------------------------------------------

    def _changed(self, records: Sequence[internal.Record], end_offset: int) -> None:
        delta = bus.DELTA(
            begin_offset=end_offset - len(records),
            end_offset=end_offset,
            records=[internal.write(record) for record in records],
        )
        for member in self.members.values():
            if member.welcomed:
                # A worker that could not be sent to is welcomed again, and reads on in the files;
                # one that was removed is about to end, or has ended.
                removed = member.peer.node_id not in self._controller.image.nodes
                member.welcomed = self._send(identity_of(member.peer), delta, quiet=removed)

    def applied_everywhere(self, end_offset: int) -> Later[None]:
        """Complete when every running worker has applied this offset, or after the maximum wait."""
        waiting = Waiting(end_offset, Later())
        waiting.timer = self._reactor.call_later(MADE_WAIT_MS_MAX, lambda: self._let_go(waiting))
        self._waiting.append(waiting)
        self._release()
        return waiting.later

    def _release(self) -> None:
        if not self._waiting:
            return
        if self._awaits_nodes():
            for waiting in self._waiting:
                waiting.for_new_nodes = True
            return
        made = min((member.made_offset for member in self.members.values()), default=1 << 62)
        for waiting in list(self._waiting):
            if waiting.for_new_nodes:
                # The listeners of the new nodes have to be known everywhere, too.
                waiting.for_new_nodes = False
                waiting.end_offset = self._controller.log.end_offset
            if waiting.end_offset <= made:
                self._let_go(waiting)

    def _awaits_nodes(self) -> bool:
        """Return whether a new node, such as a dedicated one, has no known listener yet.

        A node in back-off does not count: it may never start.
        """
        return any(
            node_id != SUPERVISOR_ID
            and not node.port
            and (node_id not in self.processes or self.processes[node_id].state != BACKOFF)
            for node_id, node in self._controller.image.nodes.items()
        )

    def _let_go(self, waiting: Waiting) -> None:
        self._waiting.remove(waiting)
        waiting.timer.cancel()
        waiting.later.resolve(None)


class Requester:
    """Represents a client of another node in the dispatcher."""

    def __init__(
        self,
        peer: tuple[str, int],
        local: tuple[str, int],
        answer: Callable[..., None],
    ) -> None:
        self.peer = peer
        self.local = local
        self.abandoned: Callable[[], None] | None = None
        self._answer = answer

    def expect(self) -> Requester:
        """Respond later, by `send`."""
        return self

    def send(self, chunks: Sequence[Any]) -> None:
        """Send the response: fetches are not forwarded, so it consists of bytes only."""
        self._answer(b"".join(chunks))

    def on_close(self, callback: Callable[[], object]) -> None:
        """Refuse: no state of this node depends on a connection at another one."""
        raise AssertionError("requests for leaders are not forwarded")

    def close(self) -> None:
        """Respond with an error: the client's connection is to be closed."""
        self._answer(None, InvalidRequest("The controller closes the connection."))
