"""What stands between the commands and librdkafka."""

from __future__ import annotations

from kafkalite.cli import clients
from kafkalite.cli.clients import Cluster, Patience


def test_nothing_for_a_while_from_a_broker_that_answers_is_said_once(monkeypatch, capsys):
    monkeypatch.setattr(clients, "SILENCE_S", 0.0)
    cluster = Cluster("127.0.0.1:9092", [])
    cluster.answered = True
    patience = Patience(cluster, "topic 'full'", "nothing was acknowledged")
    patience.look(1)
    assert capsys.readouterr().err == ""
    for _ in range(3):
        patience.look(1)
    said = capsys.readouterr().err
    assert said.startswith("kafkalite: topic 'full': nothing was acknowledged")
    assert said.count("\n") == 1


def test_a_broker_that_is_gone_is_said_by_another_sentence(monkeypatch, capsys):
    monkeypatch.setattr(clients, "SILENCE_S", 0.0)
    patience = Patience(Cluster("127.0.0.1:9092", []), "topic 'full'", "nothing was acknowledged")
    for _ in range(3):
        patience.look(1)
    assert capsys.readouterr().err == ""
