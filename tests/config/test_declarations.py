"""Declared keys: each has an effect and a description."""

import re
from pathlib import Path

import pytest

import kafkalite
from kafkalite.config import (
    broker,
    client,
    group,
    log_cleaner,
    replication,
    share_group,
    topic,
)
from kafkalite.config.broker import BROKER
from kafkalite.config.group import GROUP
from kafkalite.config.key import ConfigKey, OnlyValue
from kafkalite.config.topic import TOPIC

PACKAGE = Path(kafkalite.__file__).parent
DECLARING = (broker, client, group, log_cleaner, replication, share_group, topic)
"""The modules that declare keys."""
READING = {*PACKAGE.rglob("*.py")} - {Path(module.__file__) for module in DECLARING}
WORDS = set().union(*(re.findall(r"\w+", path.read_text()) for path in READING))

NAMED = [
    (name, key)
    for module in DECLARING
    for name, key in vars(module).items()
    if isinstance(key, ConfigKey) and name.isupper()
]


@pytest.mark.parametrize(("name", "key"), NAMED, ids=[key.name for _, key in NAMED])
def test_every_key_is_read_somewhere(name, key):
    """Exempt are keys with one possible value."""
    assert name in WORDS or isinstance(key.check, OnlyValue), "remove it, or read it"


@pytest.mark.parametrize(("name", "key"), NAMED, ids=[key.name for _, key in NAMED])
def test_constant_is_named_for_its_key(name, key):
    assert name == key.name.upper().replace(".", "_")


EVERY = [key for scope in (BROKER, TOPIC, GROUP, *client.SCOPES) for key in scope.values()]


@pytest.mark.parametrize("key", EVERY, ids=lambda key: key.name)
def test_every_key_has_a_description(key):
    assert key.doc.endswith(".")
    assert len(key.doc.split()) >= 3


def test_every_broker_key_is_a_constant_or_overridden_by_a_topic_or_group():
    keys = (*TOPIC.values(), *GROUP.values())
    overridden = {name for key in keys for name in key.overrides}
    named = {key.name for _, key in NAMED}
    assert set(BROKER) <= named | overridden
