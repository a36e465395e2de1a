"""kafkalite.cli.clients: bootstrap addresses, and messages about silent brokers."""

from __future__ import annotations

import pytest

from kafkalite.cli import clients
from kafkalite.cli.clients import ClusterClients, StallWarning
from kafkalite.errors import Refusal


@pytest.mark.parametrize(
    "address", ["h:99999", "h:0", "h:abc", "h:", "PLAINTEXT://h:65536", "[::1]:70000", "h:1,g:-1"]
)
def test_a_port_that_there_is_none_of_is_not_asked_for_another(address):
    with pytest.raises(Refusal, match="a port is 1 to 65535"):
        ClusterClients(address)


@pytest.mark.parametrize(
    "address", ["h", "h:1", "h:65535", "SSL://h", "SSL://h:9093", "[::1]:9092", "::1", "h,g:9"]
)
def test_an_address_is_written_in_any_of_the_ways_that_librdkafka_takes(address):
    assert ClusterClients(address).bootstrap == address


def test_nothing_for_a_while_from_a_broker_that_answers_is_said_once(monkeypatch, capsys):
    monkeypatch.setattr(clients, "SILENCE_S", 0.0)
    cluster = ClusterClients("127.0.0.1:9092", [])
    cluster.answered = True
    stall_warning = StallWarning(cluster, "topic 'full'", "nothing was acknowledged")
    stall_warning.look(1)
    assert capsys.readouterr().err == ""
    for _ in range(3):
        stall_warning.look(1)
    said = capsys.readouterr().err
    assert said.startswith("kafkalite: topic 'full': nothing was acknowledged")
    assert said.count("\n") == 1


def test_a_broker_that_is_gone_is_said_by_another_sentence(monkeypatch, capsys):
    monkeypatch.setattr(clients, "SILENCE_S", 0.0)
    stall_warning = StallWarning(
        ClusterClients("127.0.0.1:9092", []), "topic 'full'", "nothing was acknowledged"
    )
    for _ in range(3):
        stall_warning.look(1)
    assert capsys.readouterr().err == ""
