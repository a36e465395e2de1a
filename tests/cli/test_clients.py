"""kafkalite.cli.clients: bootstrap addresses, and messages about silent brokers."""

from __future__ import annotations

import pytest

from kafkalite.cli import clients
from kafkalite.cli.clients import ClusterClients, StallWarning
from kafkalite.errors import Refusal


@pytest.mark.parametrize(
    "address", ["h:99999", "h:0", "h:abc", "h:", "PLAINTEXT://h:65536", "[::1]:70000", "h:1,g:-1"]
)
def test_invalid_port_is_rejected(address):
    with pytest.raises(Refusal, match="the port must be 1 to 65535"):
        ClusterClients(address)


@pytest.mark.parametrize(
    "address", ["h", "h:1", "h:65535", "SSL://h", "SSL://h:9093", "[::1]:9092", "::1", "h,g:9"]
)
def test_address_forms_of_librdkafka_are_accepted(address):
    assert ClusterClients(address).bootstrap == address


def test_stall_of_a_responding_broker_is_reported_once(monkeypatch, capsys):
    monkeypatch.setattr(clients, "STALL_S", 0.0)
    cluster = ClusterClients("127.0.0.1:9092", [])
    cluster.is_connected = True
    stall_warning = StallWarning(cluster, "topic 'full'", "no record was acknowledged")
    stall_warning.check(1)
    assert capsys.readouterr().err == ""
    for _ in range(3):
        stall_warning.check(1)
    result = capsys.readouterr().err
    assert result.startswith("kafkalite: topic 'full': no record was acknowledged")
    assert result.count("\n") == 1


def test_stall_of_an_unreachable_broker_is_not_reported(monkeypatch, capsys):
    monkeypatch.setattr(clients, "STALL_S", 0.0)
    stall_warning = StallWarning(
        ClusterClients("127.0.0.1:9092", []), "topic 'full'", "no record was acknowledged"
    )
    for _ in range(3):
        stall_warning.check(1)
    assert capsys.readouterr().err == ""
