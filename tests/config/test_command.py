"""`kafkalite config keys`, called as the command line calls it."""

import json

import pytest

from kafkalite.cli import main
from kafkalite.config.broker import BROKER
from kafkalite.config.topic import TOPIC


def test_every_key_is_listed_with_its_words(capsys):
    assert main(["config", "keys"]) == 0
    printed = capsys.readouterr().out
    for key in (*BROKER.values(), *TOPIC.values()):
        assert f"{key.name}  (" in printed


@pytest.mark.parametrize("pattern", ["roll.jitter", "log.roll.jit*"])
def test_a_pattern_is_a_part_of_a_name_or_has_stars(capsys, pattern):
    assert main(["config", "keys", pattern, "--json"]) == 0
    names = [entry["name"] for entry in json.loads(capsys.readouterr().out)]
    assert sorted(names) == ["log.roll.jitter.hours", "log.roll.jitter.ms"]


def test_the_json_says_all_that_is_declared(capsys):
    assert main(["config", "keys", "min.insync.replicas", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (entry,) = [key for key in found if key["scope"] == "topic"]
    assert entry == {
        "name": "min.insync.replicas",
        "scope": "topic",
        "type": "int",
        "default": "1",
        "valid": "1 (a partition has one replica in this version)",
        "overrides": ["min.insync.replicas"],
        "dynamic": True,
        "doc": TOPIC["min.insync.replicas"].doc,
    }


def test_a_pattern_that_fits_no_key_is_refused(capsys):
    assert main(["config", "keys", "no.such"]) == 1
    assert "no key is named like 'no.such'" in capsys.readouterr().err
