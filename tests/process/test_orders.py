"""The launcher's end of the control channel: the supervisor gets the last state, however late."""

import time

import pytest

from kafkalite.clock import ManualClock
from kafkalite.config.broker import Listener
from kafkalite.process.nodes.control_channel import PACKETS_PER_TICK, TELL_AGAIN_MS, Orders
from kafkalite.process.nodes.node_process import NodeProcess
from kafkalite.process.nodes.supervisor_watch import send_unless_unread
from kafkalite.protocol.schemas.bus import FENCE, HEARTBEAT, ROSTER, read_frame, write_frame
from kafkalite.transport.reactor import Reactor


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def reactor(clock):
    reactor = Reactor(clock)
    yield reactor
    reactor.close()


@pytest.fixture
def obeyed():
    return []


@pytest.fixture
def orders(reactor, obeyed):
    orders = Orders(reactor, lambda *told: obeyed.append(told), lambda *told: obeyed.append(told))
    yield orders
    orders.close()


@pytest.fixture
def other(orders):
    with orders.open() as other:
        yield other


def tell(orders, reactor, incarnation):
    node = NodeProcess(reactor, 1, died=None)
    node.incarnation = incarnation
    orders.tell([node], lambda node: Listener("127.0.0.1", 9093))


def told(other):
    """Yield the incarnations that the supervisor receives."""
    while True:
        try:
            (node,) = read_frame(other.recv(1 << 16)).fields["nodes"]
        except BlockingIOError:
            return
        yield node["incarnation"]


def test_what_is_so_already_is_not_said_again(orders, reactor, other):
    for incarnation in (1, 1, 2, 2, 1):
        tell(orders, reactor, incarnation)
    assert list(told(other)) == [1, 2, 1]


def test_a_supervisor_that_does_not_listen_hears_the_last_word_when_it_does(
    orders, reactor, clock, other
):
    last = 0
    while orders.sent == b"" or orders.sent == write_frame_of(last):
        last += 1
        tell(orders, reactor, last)
    heard = list(told(other))
    assert heard == list(range(1, last))
    began = time.monotonic()
    reactor.tick()  # sleeps no longer than until it is time to send again
    assert time.monotonic() - began < 30
    clock.advance(TELL_AGAIN_MS)
    reactor.tick(0)
    tell(orders, reactor, last)  # as the launcher does in every tick
    assert list(told(other)) == [last]


def write_frame_of(incarnation):
    from kafkalite.protocol.schemas.bus import NODES

    node = {"node_id": 1, "incarnation": incarnation, "pid": 0, "state": "starting"}
    return write_frame(NODES(nodes=[{**node, "host": "127.0.0.1", "port": 9093}]))


def test_a_new_supervisor_is_told_all_at_once(orders, reactor, other):
    tell(orders, reactor, 1)
    with orders.open() as second:
        tell(orders, reactor, 1)
        assert list(told(second)) == [1]


def test_a_talkative_supervisor_does_not_keep_the_loop_from_all_else(
    orders, reactor, other, obeyed
):
    for incarnation in range(3 * PACKETS_PER_TICK):
        other.send(write_frame(FENCE(node_id=1, incarnation=incarnation)))
    reactor.tick(0)
    assert len(obeyed) == PACKETS_PER_TICK
    for _ in range(3):
        reactor.tick(0)
    assert obeyed == [(1, incarnation) for incarnation in range(3 * PACKETS_PER_TICK)]


def test_a_supervisor_that_has_gone_is_told_nothing(orders, reactor, other):
    other.send(write_frame(ROSTER(node_ids=[1, 2], dedicated=[2])))
    other.close()
    tell(orders, reactor, 1)
    for _ in range(3):
        reactor.tick(0)
    assert orders.socket is None
    tell(orders, reactor, 2)


def test_a_roster_is_passed_on_with_who_is_dedicated(orders, reactor, other, obeyed):
    other.send(write_frame(ROSTER(node_ids=[2, 1, 2], dedicated=[2])))
    reactor.tick(0)
    assert obeyed == [({1, 2}, frozenset({2}))]


def test_a_launcher_that_was_stopped_leaves_room_for_orders(orders, other, reactor, obeyed):
    beats = []
    orders.heartbeat = lambda: beats.append(1)
    beat = write_frame(HEARTBEAT(image_offset=7, led_count=0, size=0, unmade=[]))
    for _ in range(2_000):
        send_unless_unread(other, beat)
    for number in range(50):
        other.send(write_frame(ROSTER(node_ids=[number], dedicated=[])))
    for _ in range(51 // PACKETS_PER_TICK + 1):
        reactor.tick(0)
    assert len(beats) == 1 and len(obeyed) == 50
    assert send_unless_unread(other, beat)
    reactor.tick(0)
    assert len(beats) == 2
