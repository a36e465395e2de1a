"""Keys by resource: their update mode, client metrics, loggers."""

from __future__ import annotations

import logging

import pytest

import kafkalite.broker.dispatch  # noqa: F401  (with it every logger is made)
from kafkalite.config.broker import BROKER
from kafkalite.config.client_metrics import CLIENT_METRICS, INTERVAL_MS, MATCH, parse_match
from kafkalite.config.key import UpdateMode
from kafkalite.config.resources import LEVELS, LOGGER, SCOPES, Resource
from kafkalite.config.topic import TOPIC
from kafkalite.errors import InvalidConfig


@pytest.mark.parametrize("scope", SCOPES.values(), ids=lambda scope: scope.owner)
def test_every_resource_key_has_a_description(scope):
    for key in scope.values():
        assert key.doc.endswith(".") and len(key.doc.split()) >= 3


def test_no_other_resource_has_cluster_only_keys():
    for kind in (Resource.TOPIC, Resource.BROKER_LOGGER, Resource.CLIENT_METRICS):
        assert not [key for key in SCOPES[kind].values() if key.update is UpdateMode.CLUSTER_ONLY]


def test_topic_default_keys_are_dynamic_except_durability():
    finest = {key.overrides[0] for key in TOPIC.values() if key.overrides}
    assert {name for name in finest if not BROKER[name].dynamic} == {"durability"}
    coarser = {name for key in TOPIC.values() for name in key.overrides[1:]}
    assert not [name for name in coarser if BROKER[name].dynamic]


@pytest.mark.parametrize(
    "name",
    ["node.id", "listeners", "advertised.listeners", "log.dirs", "workers",
     "socket.request.max.bytes", "queued.max.request.bytes", "offsets.topic.num.partitions"],
)  # fmt: skip
def test_socket_process_and_file_keys_are_read_only(name):
    assert BROKER[name].update is UpdateMode.READ_ONLY


@pytest.mark.parametrize("name", ["num.partitions", "group.max.size", "worker.dedicated.max"])
def test_controller_keys_are_cluster_only(name):
    assert BROKER[name].update is UpdateMode.CLUSTER_ONLY


# -- client metrics ------------------------------------------------------------------------------


def test_match_is_selectors_with_patterns():
    found = parse_match(["client_id=a.*", " client_source_address = 10\\.[0-9]+"])
    assert found["client_id"].fullmatch("abc")
    assert not found["client_id"].fullmatch("xabc")
    assert found["client_source_address"].fullmatch("10.7")
    assert parse_match(MATCH.default) == {}


@pytest.mark.parametrize("text", ["client_id", "=a", "client=a", "client_id=[", "client_id=a,"])
def test_invalid_match_is_rejected(text):
    with pytest.raises(InvalidConfig, match="match"):
        CLIENT_METRICS.parse({"match": text})


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(a+)+b", "has a group"),
        ("(?:a|a)(?:a|a)b", "has a group"),
        ("a*a*a*a*b", "more than 3 repetitions"),
        ("a?a?[*]a?a?b", "more than 3 repetitions"),
        ("a" * 201, "at most 200 characters"),
    ],
)
def test_match_pattern_with_unbounded_backtracking_is_rejected(pattern, words):
    with pytest.raises(InvalidConfig, match=words):
        parse_match([f"client_id={pattern}"])


def test_match_pattern_accepts_escaped_groups_and_repetitions():
    text = r"\(a\*\+\?[]*+?()]x-a|x-b.*"
    pattern = parse_match([f"client_id={text}"])["client_id"]
    assert pattern.fullmatch("(a*+?)x-a") and pattern.fullmatch("x-bc")


@pytest.mark.parametrize(("text", "fits"), [("99", 0), ("100", 1), ("3600000", 1), ("3600001", 0)])
def test_push_interval_is_bounded(text, fits):
    if fits:
        assert CLIENT_METRICS.parse({"interval.ms": text}) == {INTERVAL_MS.name: int(text)}
        return
    with pytest.raises(InvalidConfig, match="between 100 and 3600000"):
        CLIENT_METRICS.parse({"interval.ms": text})


# -- loggers -------------------------------------------------------------------------------------


def test_logger_keys_cover_every_logger_of_a_node():
    there = {name for name in logging.root.manager.loggerDict if name.startswith("kafkalite")}
    # No node can set the loggers of other processes, such as a client's program or a service.
    elsewhere = ("kafkalite.cleaner", "kafkalite.client", "kafkalite.gateway", "kafkalite.http")
    of_nodes = {name for name in there if not name.startswith(elsewhere)}
    assert "kafkalite.broker" in of_nodes
    assert of_nodes <= set(LOGGER)


def test_levels_are_in_descending_severity():
    assert list(LEVELS.values()) == sorted(LEVELS.values(), reverse=True)
    assert LEVELS["ERROR"] == logging.ERROR
