"""The types of the public API: a user's program under mypy, and the keywords of the clients."""

import subprocess
import sys
from pathlib import Path

import pytest

from kafkalite.client.net.settings import (
    consumer_settings,
    producer_settings,
    share_consumer_settings,
)
from kafkalite.config.client import CONSUMER, PRODUCER, SHARE_CONSUMER
from kafkalite.config.client_keywords import ConsumerConfig, ProducerConfig, ShareConsumerConfig
from tools import gen_keywords

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """
import asyncio
import json

from kafkalite import (
    AsyncConsumer, AsyncProducer, Broker, Consumer, ConsumerConfig, Message, Producer,
    ProducerConfig, TopicPartition, __version__,
)
from kafkalite.errors import KafkaError

options: ProducerConfig = {"linger_ms": 5, "acks": "all", "value_serializer": json.dumps}


def produce(bootstrap: str) -> int:
    with Producer(bootstrap, **options) as producer:
        delivery = producer.send("topic", {"a": 1}, key="k", headers={"h": b"v"}, partition=0)
        return delivery.result().offset


def consume(bootstrap: str) -> list[bytes | None]:
    config: ConsumerConfig = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 1000}
    with Consumer(bootstrap, topics=["topic"], **config) as consumer:
        first: Message | None = consumer.poll(timeout=1)
        lag: int = consumer.lag(TopicPartition("topic", 0))
        return [message.value for message in consumer] + ([first.value] if first else [])


async def both(bootstrap: str) -> None:
    async with AsyncProducer(bootstrap, linger_ms=0) as producer:
        offset: int = (await (await producer.send("topic", "a"))).offset
    async with AsyncConsumer(bootstrap, topics="topic", fetch_max_wait_ms=100) as consumer:
        async for message in consumer:
            key: bytes | None = message.key


try:
    with Broker(config={"num.partitions": 3}) as broker:
        produce(broker.bootstrap)
        consume(broker.bootstrap)
        asyncio.run(both(broker.bootstrap))
except KafkaError as error:
    print(__version__, error)
"""

MISUSES = {
    "Producer(lingers_ms=5)": "lingers_ms",
    "Producer(linger_ms=[5])": "linger_ms",
    'Producer(group_id="a")': "group_id",
    "Consumer(linger_ms=5)": "linger_ms",
    "AsyncProducer(fetch_max_bytes=1)": "fetch_max_bytes",
    'AsyncConsumer(acks="all")': "acks",
}


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """Errors of mypy --strict in a user's programs, by file and line.

    The programs see this tree as an installed package, whose types mypy only uses with py.typed.
    """
    folder = tmp_path_factory.mktemp("types")
    run([sys.executable, "-m", "venv", "--without-pip", folder / "environment"])
    (site,) = folder.glob("environment/lib/*/site-packages")
    (site / "kafkalite.pth").write_text(f"{ROOT}\n")
    (folder / "correct.py").write_text(PROGRAM)
    names = "AsyncConsumer, AsyncProducer, Consumer, Producer"
    (folder / "misuses.py").write_text("\n".join([f"from kafkalite import {names}", *MISUSES]))
    output = run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"]
        + ["--python-executable", folder / "environment/bin/python", "correct.py", "misuses.py"],
        cwd=folder,
    )
    return {line.partition(" error: ")[0]: line for line in output.splitlines() if "error:" in line}


def run(command, **options):
    """Run a command, which may report errors of types; return its output."""
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    assert ended.returncode in (0, 1) and not ended.stderr, ended.stderr
    return ended.stdout


def test_correct_program_passes_mypy_strict(errors):
    assert [line for where, line in errors.items() if where.startswith("correct.py")] == []


def test_misuses_are_mypy_errors(errors):
    misuses = {where: line for where, line in errors.items() if where.startswith("misuses.py")}
    assert list(misuses) == [f"misuses.py:{number}:" for number in range(2, len(MISUSES) + 2)]
    for line, word in zip(misuses.values(), MISUSES.values(), strict=True):
        assert word in line


def test_keywords_file_is_current():
    assert gen_keywords.PATH.read_text() == gen_keywords.text(), "run: make reference"


def share_settings(bootstrap, keywords):
    """Return the settings of a share consumer, whose group has no default."""
    return share_consumer_settings(bootstrap, {**keywords, "group_id": "g"})


@pytest.mark.parametrize(
    ("config", "scope", "settings"),
    [
        (ProducerConfig, PRODUCER, producer_settings),
        (ConsumerConfig, CONSUMER, consumer_settings),
        (ShareConsumerConfig, SHARE_CONSUMER, share_settings),
    ],
)
def test_each_keyword_is_a_key(config, scope, settings):
    names = config.__annotations__
    assert {name.replace("_", ".") for name in names} == set(scope)
    settings(None, dict.fromkeys(names))
