"""The launcher's end of the control channel: the supervisor gets the last state, however late."""

import time

import pytest

from kafkalite.clock import ManualClock
from kafkalite.config.listener import Listener
from kafkalite.process.nodes.control_channel import PACKETS_PER_TICK, RESEND_MS, ControlChannel
from kafkalite.process.nodes.node_process import NodeProcess
from kafkalite.process.nodes.supervisor_watch import send_if_all_read
from kafkalite.protocol.schemas.bus import DESIRED_NODES, FENCE, HEARTBEAT, read_frame, write_frame
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
def handled():
    return []


@pytest.fixture
def channel(reactor, handled):
    channel = ControlChannel(
        reactor,
        lambda *fields: handled.append(fields),
        lambda *fields: handled.append(fields),
    )
    yield channel
    channel.close()


@pytest.fixture
def supervisor(channel):
    with channel.open() as supervisor:
        yield supervisor


def send(channel, reactor, incarnation):
    node = NodeProcess(reactor, 1, on_exit=None)
    node.incarnation = incarnation
    channel.send_nodes([node], lambda node: Listener("127.0.0.1", 9093))


def received(supervisor):
    """Yield the incarnations that the supervisor receives."""
    while True:
        try:
            (node,) = read_frame(supervisor.recv(1 << 16)).fields["nodes"]
        except BlockingIOError:
            return
        yield node["incarnation"]


def test_unchanged_list_is_not_sent_again(channel, reactor, supervisor):
    for incarnation in (1, 1, 2, 2, 1):
        send(channel, reactor, incarnation)
    assert list(received(supervisor)) == [1, 2, 1]


def test_supervisor_that_does_not_read_gets_the_last_list_later(
    channel, reactor, clock, supervisor
):
    last = 0
    while channel.sent == b"" or channel.sent == write_frame_of(last):
        last += 1
        send(channel, reactor, last)
    before = list(received(supervisor))
    assert before == list(range(1, last))
    began = time.monotonic()
    reactor.tick()  # sleeps no longer than until it is time to send again
    assert time.monotonic() - began < 30
    clock.advance(RESEND_MS)
    reactor.tick(0)
    send(channel, reactor, last)  # as the launcher does in every tick
    assert list(received(supervisor)) == [last]


def write_frame_of(incarnation):
    from kafkalite.protocol.schemas.bus import NODES

    node = {"node_id": 1, "incarnation": incarnation, "pid": 0, "state": "starting"}
    return write_frame(NODES(nodes=[{**node, "host": "127.0.0.1", "port": 9093}]))


def test_new_supervisor_gets_the_full_list(channel, reactor, supervisor):
    send(channel, reactor, 1)
    with channel.open() as second:
        send(channel, reactor, 1)
        assert list(received(second)) == [1]


def test_messages_read_in_one_tick_are_limited(channel, reactor, supervisor, handled):
    for incarnation in range(3 * PACKETS_PER_TICK):
        supervisor.send(write_frame(FENCE(node_id=1, incarnation=incarnation)))
    reactor.tick(0)
    assert len(handled) == PACKETS_PER_TICK
    for _ in range(3):
        reactor.tick(0)
    assert handled == [(1, incarnation) for incarnation in range(3 * PACKETS_PER_TICK)]


def test_channel_is_closed_when_the_supervisor_exits(channel, reactor, supervisor):
    supervisor.send(write_frame(DESIRED_NODES(node_ids=[1, 2], dedicated=[2])))
    supervisor.close()
    send(channel, reactor, 1)
    for _ in range(3):
        reactor.tick(0)
    assert channel.socket is None
    send(channel, reactor, 2)


def test_desired_nodes_include_the_dedicated_ones(channel, reactor, supervisor, handled):
    supervisor.send(write_frame(DESIRED_NODES(node_ids=[2, 1, 2], dedicated=[2])))
    reactor.tick(0)
    assert handled == [({1, 2}, frozenset({2}))]


def test_heartbeats_leave_space_for_other_messages(channel, supervisor, reactor, handled):
    beats = []
    channel.on_heartbeat = lambda: beats.append(1)
    beat = write_frame(HEARTBEAT(image_offset=7, led_count=0, size=0, unserved=[]))
    for _ in range(2_000):
        send_if_all_read(supervisor, beat)
    for number in range(50):
        supervisor.send(write_frame(DESIRED_NODES(node_ids=[number], dedicated=[])))
    for _ in range(51 // PACKETS_PER_TICK + 1):
        reactor.tick(0)
    assert len(beats) == 1 and len(handled) == 50
    assert send_if_all_read(supervisor, beat)
    reactor.tick(0)
    assert len(beats) == 2
