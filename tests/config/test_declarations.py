"""Declared keys: each has an effect and a description."""

import re
from pathlib import Path

import pytest

import kafkalite
from kafkalite.config import broker, client, log_cleaner, topic
from kafkalite.config.broker import BROKER
from kafkalite.config.key import ConfigKey, OnlyValue
from kafkalite.config.topic import TOPIC

PACKAGE = Path(kafkalite.__file__).parent
ROOMS = [path for path in PACKAGE.rglob("*.py") if "config" not in path.parts]
WORDS = set().union(*(re.findall(r"\w+", path.read_text()) for path in ROOMS))

NAMED = [
    (name, key)
    for module in (broker, client, log_cleaner, topic)
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


EVERY = [key for scope in (BROKER, TOPIC, *client.SCOPES) for key in scope.values()]


@pytest.mark.parametrize("key", EVERY, ids=lambda key: key.name)
def test_every_key_has_a_description(key):
    assert key.doc.endswith(".")
    assert len(key.doc.split()) >= 3


def test_every_broker_key_is_a_constant_or_a_topic_override():
    overridden = {name for key in TOPIC.values() for name in key.overrides}
    named = {key.name for _, key in NAMED}
    assert set(BROKER) <= named | overridden
