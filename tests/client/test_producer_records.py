"""Arguments of send(): timestamps, headers, serializers, and names of other clients."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest

from kafkalite import AsyncProducer, Producer
from kafkalite._ext.gathering import Gatherer, OpenQueue, OpenTopic
from kafkalite.client.net.settings import consumer_settings, producer_settings
from kafkalite.config.client import GROUP_ID, LINGER_MS, VALUE_SERIALIZER
from kafkalite.errors import InvalidConfig


class Recorder(Gatherer):
    """A Gatherer of one topic `t`, which records the appends."""

    def __init__(self):
        super().__init__(None)
        self.taken = []
        topic = self.topics["t"] = OpenTopic("t")
        topic.sticky = queue = OpenQueue(0)
        topic.queues.append(queue)
        queue.begin_batch(object(), lambda *record: self.taken.append(record) or 0)
        self.is_open = True


@pytest.fixture
def gatherer():
    return Recorder()


@pytest.mark.parametrize(
    ("timestamp", "milliseconds"),
    [
        (1_700_000_000_123, 1_700_000_000_123),
        (np.int64(1_700_000_000_123), 1_700_000_000_123),
        (datetime(2023, 11, 14, 22, 13, 20, 123_999, UTC), 1_700_000_000_123),
        (datetime(2023, 11, 15, 0, 13, 20, tzinfo=timezone(timedelta(hours=2))), 1_700_000_000_000),
    ],
)
def test_send_accepts_milliseconds_or_an_aware_datetime(gatherer, timestamp, milliseconds):
    assert gatherer.send("t", b"v", timestamp=timestamp).timestamp == milliseconds
    assert gatherer.taken == [(None, b"v", None, milliseconds)]


@pytest.mark.parametrize(
    ("timestamp", "error", "words"),
    [
        (1_795_377_924.25, TypeError, r"not float; for seconds .* pass int\(seconds \* 1000\)"),
        (True, TypeError, "not bool"),
        ("2026", TypeError, "not str"),
        (np.float64(1.5e12), TypeError, "not float64"),
        (datetime(2026, 11, 22), ValueError, "has no time zone"),
        (-5, ValueError, "since 1970, from 0 to .*, not -5"),
        (datetime(1960, 1, 1, tzinfo=UTC), ValueError, "from 0 to .*, not -3"),
        (1 << 63, ValueError, f"from 0 to {(1 << 63) - 1}, not {1 << 63}"),
        (np.uint64(1 << 63), ValueError, f"not {1 << 63}"),
    ],
)
def test_send_rejects_other_timestamps(gatherer, timestamp, error, words):
    with pytest.raises(error, match=words):
        gatherer.send("t", b"v", timestamp=timestamp)
    assert not gatherer.taken


@pytest.mark.parametrize("headers", [{"a": b"1", "b": None}, (("a", b"1"), ("b", None))])
def test_headers_are_pairs_or_a_mapping(gatherer, headers):
    gatherer.send("t", b"v", headers=headers)
    assert gatherer.taken[0][2] == [("a", b"1"), ("b", None)]


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ("ab", r"headers must be \(name, value\) pairs or a mapping, not str"),
        (b"ab", "a mapping, not bytes"),
        (5, "a mapping, not int"),
    ],
)
def test_send_rejects_other_headers(gatherer, headers, words):
    with pytest.raises(TypeError, match=words):
        gatherer.send("t", b"v", headers=headers)
    assert not gatherer.taken


@pytest.mark.parametrize("partition", [True, "0", 0.0])
def test_send_rejects_partitions_that_are_not_integers(gatherer, partition):
    words = f"partition must be an int, not {type(partition).__name__}"
    with pytest.raises(TypeError, match=words):
        gatherer.send("t", b"v", partition=partition)
    assert not gatherer.taken


def test_send_accepts_a_partition_of_numpy(gatherer):
    gatherer.send("t", b"v", partition=np.int32(0))
    assert len(gatherer.taken) == 1


def test_send_rejects_a_callback_that_is_not_callable(gatherer):
    with pytest.raises(TypeError, match="on_delivery is a function .* not int"):
        gatherer.send("t", b"v", on_delivery=3)
    assert not gatherer.taken


def test_serializers_convert_values_and_keys_once(gatherer):
    gatherer.value_serializer = lambda value: f"<{value}>"
    gatherer.key_serializer = lambda key: b"k%d" % key
    gatherer.send("t", {"a": 1}, key=7)
    gatherer.send("t", 5, serializer=lambda value: b"%d" % value)
    gatherer.send("t", None)
    assert [record[:2] for record in gatherer.taken] == [
        (b"k7", "<{'a': 1}>"), (None, b"5"), (None, None),
    ]  # fmt: skip


def test_serializers_must_be_functions():
    assert producer_settings(None, {"value_serializer": repr})[VALUE_SERIALIZER] is repr
    with pytest.raises(InvalidConfig, match="a function is passed"):
        producer_settings(None, {"value.serializer": "org.apache.kafka.StringSerializer"})


def test_settings_are_accepted_in_a_dictionary_with_dotted_names():
    words = {"bootstrap.servers": "a:1,b:2", "linger.ms": 7}
    settings = producer_settings(words, {"acks": 1})
    assert settings.addresses == [("a", 1), ("b", 2)]
    assert settings[LINGER_MS] == 7
    assert consumer_settings({"group.id": "g"}, {})[GROUP_ID] == "g"
    with pytest.raises(InvalidConfig, match="linger.ms is given twice"):
        producer_settings(words, {"linger_ms": 8})
    with pytest.raises(InvalidConfig, match="linger.ms is given twice"):
        producer_settings(words, {"linger.ms": 8})


@pytest.mark.parametrize(
    ("name", "words"),
    [("produce", r"no produce\(\): use send"), ("poll", "background thread"), ("x", "attribute")],
)
def test_missing_method_of_another_client_names_its_replacement(name, words):
    with Producer("127.0.0.1:1") as producer, pytest.raises(AttributeError, match=words):
        getattr(producer, name)
    assert not hasattr(AsyncProducer, name)
