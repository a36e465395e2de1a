"""DescribeConfigs of many resources: written in bounded steps, with the bytes of one response."""

from __future__ import annotations

import pytest

from kafkalite.broker.stepping import STEP_MS
from kafkalite.protocol.schemas import configs as schemas
from kafkalite.protocol.schemas.configs import DESCRIBE_CONFIGS

TOPIC = 2


@pytest.fixture
def topics(broker):
    names = [f"t{number}" for number in range(6)]
    for name in names[1:]:
        broker.create(name, **({"retention_ms": "7"} if name == "t5" else {}))
    return [
        {"resource_type": TOPIC, "resource_name": name, "configuration_keys": None}
        for name in names
    ]


@pytest.fixture
def slow_results(broker, monkeypatch):
    """Make writing a result take 4 ms."""
    write = schemas.DESCRIBED_RESOURCES.write_element

    def slow(*arguments):
        broker.clock.advance(4)
        return write(*arguments)

    monkeypatch.setattr(schemas.DESCRIBED_RESOURCES, "write_element", slow)


def ticks_until_answered(broker, wire):
    lengths = []
    while wire.sent is None:
        before = broker.clock.monotonic_ms()
        broker.clock.advance(1)
        broker.reactor.tick(0)
        lengths.append(broker.clock.monotonic_ms() - before)
    return lengths


@pytest.mark.parametrize("version", [1, 3, 4])
def test_describe_configs_in_steps_writes_the_bytes_of_one_response(broker, topics, version):
    wire = broker.send(DESCRIBE_CONFIGS, version, resources=topics, include_synonyms=True)
    assert wire.sent is not None, "what is quick is answered at once"
    answer = broker.response(wire, DESCRIBE_CONFIGS, version)
    assert [each.resource_name for each in answer.results] == [f"t{n}" for n in range(6)]
    assert [each.error_code for each in answer.results] == [3, 0, 0, 0, 0, 0]
    configs = [{each.name: each.value for each in one.configs} for one in answer.results[1:]]
    values = [each["retention.ms"] for each in configs]
    assert values == ["604800000"] * 4 + ["7"]
    header = 5 if version == 4 else 4
    again = DESCRIBE_CONFIGS.response.write(version, as_values(answer))
    assert wire.bytes[header:] == again


def as_values(fields):
    """Return decoded fields as values that can be encoded."""
    if isinstance(fields, (list, tuple)):
        return [as_values(each) for each in fields]
    if hasattr(fields, "__dict__"):
        return {name: as_values(value) for name, value in vars(fields).items()}
    return fields


def test_describe_configs_of_many_topics_takes_several_steps(broker, topics, slow_results):
    wire = broker.send(DESCRIBE_CONFIGS, 4, resources=topics)
    assert wire.sent is None
    lengths = ticks_until_answered(broker, wire)
    assert max(lengths) <= STEP_MS + 4 + 1
    assert len(broker.response(wire, DESCRIBE_CONFIGS, 4).results) == 6


def test_describe_configs_is_cancelled_when_the_client_disconnects(broker, topics, slow_results):
    wire = broker.send(DESCRIBE_CONFIGS, 4, resources=topics)
    assert wire.abandoned is not None
    wire.abandoned()
    for _ in range(5):
        broker.clock.advance(1)
        broker.reactor.tick(0)
    assert wire.sent is None
