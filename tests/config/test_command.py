"""`kafkalite config keys`, called as the command line calls it."""

import json

import pytest

from kafkalite.cli import main
from kafkalite.config.broker import BROKER
from kafkalite.config.topic import TOPIC


def test_config_keys_lists_every_key(capsys):
    assert main(["config", "keys"]) == 0
    printed = capsys.readouterr().out
    for key in (*BROKER.values(), *TOPIC.values()):
        assert f"{key.name}  (" in printed


@pytest.mark.parametrize("pattern", ["roll.jitter", "log.roll.jit*"])
def test_config_keys_pattern_matches_part_of_name_or_wildcards(capsys, pattern):
    assert main(["config", "keys", pattern, "--json"]) == 0
    names = [entry["name"] for entry in json.loads(capsys.readouterr().out)]
    assert sorted(names) == ["log.roll.jitter.hours", "log.roll.jitter.ms"]


def test_config_keys_json_contains_every_attribute(capsys):
    assert main(["config", "keys", "min.insync.replicas", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (entry,) = [key for key in found if key["scope"] == "topic"]
    assert entry == {
        "name": "min.insync.replicas",
        "scope": "topic",
        "type": "int",
        "default": "1",
        "valid": "at least 1",
        "overrides": ["min.insync.replicas"],
        "dynamic": True,
        "doc": TOPIC["min.insync.replicas"].doc,
    }


def test_config_keys_rejects_pattern_without_match(capsys):
    assert main(["config", "keys", "no.such"]) == 1
    assert "no key matches 'no.such'" in capsys.readouterr().err
