"""Self-test of the prober: it records the broker's responses, and their times."""

import socket
import time

import pytest

from kafkalite.testing import Broker
from tests.faults.history import ACKED, REFUSED, History, Read, Send, violations
from tests.faults.prober import Directory, Metronome, Prober, longest_gap, recovered_at
from tests.faults.raw_connection import Leader, RawConnection
from tests.process.waiting import until


def sends(*moments):
    return [Send("prober", 0, "v", outcome, -1, 1, at, at + 1) for at, outcome in moments]


def test_recovery_ends_with_the_first_later_acknowledgement():
    tried = sends((1, ACKED), (3, ACKED), (5, REFUSED), (7, ACKED), (9, ACKED))
    assert recovered_at(tried, 0) == 2
    assert recovered_at(tried, 3.5) == 8
    assert recovered_at(tried, 9.5) is None


def test_longest_gap_includes_both_bounds():
    tried = sends((1, ACKED), (3, REFUSED), (5, ACKED), (6, ACKED))
    metronome = Metronome([])
    assert longest_gap(tried, 0, 10, metronome) == 4
    assert longest_gap(tried, 0, 20, metronome) == 13
    assert longest_gap([], 5, 7, metronome) == 2


def test_longest_gap_ignores_pauses_of_the_observer():
    metronome = Metronome([])
    metronome.stalls = [(1.5, 2.5), (8, 10)]
    assert metronome.stalled_s(0, 9) == 2
    assert metronome.stalled_s(2, 2.25) == 0.25
    assert metronome.stalled_s(3, 7) == 0
    assert longest_gap(sends((1, ACKED), (8, ACKED)), 2, 9, metronome) == 5.5


def test_metronome_reports_a_stalled_machine():
    metronome = Metronome([])
    metronome.LATE_S = 0.0
    metronome.thread.start()
    until(lambda: metronome.stalls)
    metronome.running = False
    metronome.thread.join()


@pytest.fixture(scope="module")
def broker():
    with Broker() as broker:
        yield broker


def address(broker):
    host, _, port = broker.bootstrap.rpartition(":")
    return host, int(port)


def test_probe_is_acknowledged_and_read_back(broker):
    history = History()
    topic = broker.topic(2)
    prober = Prober(Directory(topic, [address(broker)], history), 1, [])
    while not prober.probe():
        assert not prober.troubles
    assert prober.probe()
    prober.hang_up()
    assert [send.offset for send in history.sends] == [0, 1]
    assert {send.node for send in history.sends} == {0}
    assert [look.value for look in history.lookups] == [send.value for send in history.sends]
    history.final = [Read(1, send.offset, send.value, 0) for send in history.sends]
    assert history.observations and violations(history) == []


def test_probe_records_the_response_of_a_former_leader(broker):
    """Here the node is still the leader, so the checker must report the record it accepts."""
    history = History()
    topic = broker.topic(1)
    directory = Directory(topic, [address(broker)], history)
    prober = Prober(directory, 0, [])
    while not prober.probe():
        assert not prober.troubles
    with socket.create_server(("127.0.0.1", 0)) as successor:
        directory.leaders[0] = Leader(0, 7, 1)
        directory.addresses[7] = successor.getsockname()
        successor.close()
        assert not prober.probe()
    prober.hang_up()
    assert [(send.node, send.outcome) for send in history.sends] == [(0, ACKED), (0, ACKED)]
    history.final = [Read(0, send.offset, send.value, 0) for send in history.sends]
    assert violations(history) == []
    history.final[1] = history.final[1]._replace(leader_epoch=1)
    history.observations.append(history.observations[-1]._replace(leader=7, leader_epoch=1))
    assert any(complaint.startswith("I9") for complaint in violations(history))


def test_probe_without_response_is_not_acknowledged(broker, monkeypatch):
    monkeypatch.setattr("tests.faults.prober.RESPONSE_S_MAX", 0.05)
    history = History()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        directory = Directory("t", [silent.getsockname()], history)
        monkeypatch.setattr(directory, "observe", lambda by, line: None)
        directory.leaders[0] = Leader(0, 0, 0)
        prober = Prober(directory, 0, [])
        begun = time.monotonic()
        assert not prober.probe()
        assert time.monotonic() - begun < 5
        prober.hang_up()
    assert [send.outcome for send in history.sends] == ["unknown"]
    assert [trouble.partition for trouble in prober.troubles] == [0]


def test_probe_connection_closes_on_the_first_error(broker):
    with RawConnection(address(broker), 5) as line:
        assert line.cluster("").addresses.keys() == {0}
        line.socket.shutdown(socket.SHUT_RDWR)
        with pytest.raises(OSError):
            line.cluster("")
        assert line.socket.fileno() == -1


def test_probe_reports_a_connection_closed_within_a_response():
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, RawConnection(listener.getsockname(), 5) as line:
        node, _ = listener.accept()
        with node:
            node.sendall((100).to_bytes(4, "big") + bytes(20))
        with pytest.raises(ConnectionResetError):
            line.cluster("t")
        assert line.socket.fileno() == -1
