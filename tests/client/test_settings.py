"""Client settings: Kafka's names, in any form, and an error for what cannot be used."""

import pytest

from kafkalite.client.net.settings import consumer_settings, producer_settings, required_acks
from kafkalite.client.net.topology import parse_address
from kafkalite.config import client
from kafkalite.errors import InvalidConfig


def test_settings_without_values_are_defaults():
    for settings in (producer_settings(None, {}), consumer_settings(None, {})):
        for key in settings.scope.values():
            assert settings[key] == key.default
            assert not settings.is_given(key)


@pytest.mark.parametrize(
    "keywords",
    [{"linger_ms": 7}, {"linger.ms": 7}, {"linger.ms": "7"}, {"linger_ms": " 7 "}],
)
def test_setting_names_accept_dots_or_underscores(keywords):
    settings = producer_settings(None, keywords)
    assert settings[client.LINGER_MS] == 7
    assert settings.is_given(client.LINGER_MS)


@pytest.mark.parametrize(
    ("keywords", "key", "value"),
    [
        ({"enable_idempotence": False}, client.ENABLE_IDEMPOTENCE, False),
        ({"enable.idempotence": "false"}, client.ENABLE_IDEMPOTENCE, False),
        ({"acks": 1}, client.ACKS, "1"),
        ({"acks": "-1"}, client.ACKS, "all"),
        ({"acks": -1}, client.ACKS, "all"),
        ({"bootstrap_servers": "a:1, b:2"}, client.BOOTSTRAP_SERVERS, ("a:1", "b:2")),
        ({"bootstrap_servers": ["a:1", "b:2"]}, client.BOOTSTRAP_SERVERS, ("a:1", "b:2")),
        ({"compression_type": None}, client.COMPRESSION_TYPE, "none"),
        ({"transactional_id": None}, client.TRANSACTIONAL_ID, None),
        ({"security_protocol": "plaintext"}, client.SECURITY_PROTOCOL, "PLAINTEXT"),
    ],
)
def test_setting_value_may_be_text_or_typed(keywords, key, value):
    assert producer_settings(None, keywords)[key] == value


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        (
            {"linger_mss": 1},
            "linger.mss is not a configuration key of a producer; did you mean lin",
        ),
        ({"fetch_min_bytes": 1}, "is not a configuration key of a producer"),
        ({"linger_ms": 1, "linger.ms": 1}, "linger.ms is given twice"),
        ({"linger_ms": -1}, "linger.ms must be at least 0, not '-1'"),
        ({"linger_ms": 1.5}, "linger.ms must be an integer, not '1.5'"),
        ({"linger_ms": True}, "linger.ms must be an integer, not 'true'"),
        ({"linger_ms": b"1"}, "linger.ms cannot be a bytes"),
        ({"linger_ms": [1]}, "linger.ms cannot be a list"),
        ({"acks": 2}, "acks must be one of all, 0, 1, not '2'"),
        ({"acks": len}, "acks cannot be a builtin_function_or_method"),
        ({"transactional_id": ""}, "transactional.id must be a name"),
        ({"transactional_id": "t", "acks": 1}, "transactional.id requires acks to be all"),
        (
            {"transactional_id": "t", "enable_idempotence": False},
            "transactional.id requires enable.idempotence",
        ),
        ({"security_protocol": "SASL_SSL"}, "TLS and SASL come with a later version"),
        ({"sasl.mechanism": "PLAIN"}, "TLS and SASL come with a later version"),
        ({"partitioner_class": "x"}, "partitioner takes a name or a function"),
        ({"delivery_timeout_ms": 30_000}, "delivery.timeout.ms must be at least linger.ms"),
        ({"enable_idempotence": True, "acks": 1}, "enable.idempotence requires acks to be all"),
        ({"enable_idempotence": True, "retries": 0}, "requires retries to be above 0"),
        (
            {"enable_idempotence": True, "max_in_flight_requests_per_connection": 6},
            "requires max.in.flight.requests.per.connection to be at most 5",
        ),
        ({"bootstrap_servers": ""}, "bootstrap.servers must be a list of HOST:PORT"),
        ({"bootstrap_servers": []}, "bootstrap.servers must be a list of HOST:PORT"),
        ({"bootstrap_servers": "kafka:99999"}, "'kafka:99999' must be HOST:PORT"),
        ({"client_id": "x" * 250}, "client.id must be at most 249 bytes"),
    ],
)
def test_invalid_setting_is_rejected_with_a_sentence(keywords, words):
    with pytest.raises(InvalidConfig) as refused:
        producer_settings(None, keywords)
    assert words in str(refused.value)


def test_bootstrap_servers_given_twice_are_rejected():
    assert producer_settings("a:1", {}).addresses == [("a", 1)]
    assert producer_settings(["a:1", "b"], {}).addresses == [("a", 1), ("b", 9092)]
    for name in ("bootstrap_servers", "bootstrap.servers"):
        with pytest.raises(InvalidConfig, match=r"bootstrap.servers is given twice"):
            producer_settings("a:1", {name: "b:2"})


@pytest.mark.parametrize(
    "keywords",
    [{"acks": 0}, {"acks": "1"}, {"retries": 0}, {"max_in_flight_requests_per_connection": 6}],
)
def test_incompatible_settings_disable_default_idempotence(keywords):
    assert not producer_settings(None, keywords)[client.ENABLE_IDEMPOTENCE]


def test_longer_request_timeout_extends_delivery_timeout():
    settings = producer_settings(None, {"request_timeout_ms": 200_000, "linger_ms": 10})
    assert settings[client.DELIVERY_TIMEOUT_MS] == 200_010


@pytest.mark.parametrize(("acks", "number"), [("all", -1), (1, 1), ("0", 0)])
def test_acks_have_their_wire_value(acks, number):
    assert required_acks(producer_settings(None, {"acks": acks})) == number


def test_default_call_timeout_is_max_block_or_default_api_timeout():
    assert producer_settings(None, {"max_block_ms": 1500}).call_timeout_s == 1.5
    assert consumer_settings(None, {"default_api_timeout_ms": 2500}).call_timeout_s == 2.5


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"partition_assignment_strategy": "sticky"}, "a list of range, cooperative-sticky"),
        ({"group_id": ""}, "a name of 1 to 32767 bytes"),
        ({"group_protocol": "streams"}, "one of auto, consumer, classic"),
        ({"max_poll_records": 1}, "records are returned one at a time"),
    ],
)
def test_unsupported_consumer_settings_are_rejected(keywords, words):
    with pytest.raises(InvalidConfig, match=words):
        consumer_settings(None, keywords)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("kafka:1", ("kafka", 1)),
        ("kafka", ("kafka", 9092)),
        ("PLAINTEXT://kafka:1", ("kafka", 1)),
        ("[::1]:1", ("::1", 1)),
        ("[::1]", ("::1", 9092)),
        (" kafka:65535 ", ("kafka", 65535)),
    ],
)
def test_address_is_parsed_as_by_kafka(words, parts):
    assert parse_address(words) == parts


@pytest.mark.parametrize(
    "words",
    ["", ":1", "kafka:", "kafka:0", "kafka:65536", "a b:1", "a:b", "::1:1", "a\0:1", "[]:1"],
)
def test_invalid_address_is_rejected(words):
    with pytest.raises(InvalidConfig, match=r"must be HOST:PORT"):
        parse_address(words)


@pytest.mark.parametrize("bootstrap", [5, b"127.0.0.1:9092", 1.5])
def test_bootstrap_servers_of_wrong_type_are_rejected(bootstrap):
    with pytest.raises(InvalidConfig, match=r"HOST:PORT or a list of them, not"):
        producer_settings(bootstrap, {})


def test_keys_that_are_not_text_are_rejected():
    with pytest.raises(InvalidConfig, match="A configuration key must be text, not 1"):
        producer_settings({1: 2}, {})


def test_topic_as_first_argument_is_rejected_with_a_hint():
    with pytest.raises(InvalidConfig, match=r"'orders', is also bootstrap.servers.*topics=\.\.\."):
        consumer_settings("orders", {"bootstrap_servers": "127.0.0.1:9092"})
