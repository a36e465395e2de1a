"""The table of errors against kio's, which is made from Kafka's, and kafka-python's."""

import kafka.errors
import pytest
from kio.schema.errors import ErrorCode

from kafkalite import errors
from kafkalite.errors import BY_CODE, KafkaError, Retriable, StaleMetadata, raise_for

THEIRS = [code for code in ErrorCode if code != 0]


@pytest.mark.parametrize("theirs", THEIRS, ids=lambda theirs: theirs.name)
def test_codes_have_kafkas_names_and_retriability(theirs):
    ours = BY_CODE[int(theirs)]
    assert ours.name == theirs.name.upper()
    assert ours.retriable == theirs.retriable


def test_codes_are_contiguous():
    assert sorted(BY_CODE) == [-1, *range(1, max(BY_CODE) + 1)]


def test_stale_metadata_errors_equal_kafka_python():
    theirs = {
        error.errno
        for error in vars(kafka.errors).values()
        if isinstance(error, type)
        and issubclass(error, kafka.errors.BrokerResponseError)
        and getattr(error, "invalid_metadata", False)
    }
    assert {code for code, error in BY_CODE.items() if issubclass(error, StaleMetadata)} == theirs


def test_second_class_with_a_code_is_rejected():
    with pytest.raises(AssertionError, match="both claim 6"):
        type("Another", (KafkaError,), {}, code=6)
    assert BY_CODE[6] is errors.NotLeaderOrFollower


def test_error_text_is_the_message_or_the_first_sentence():
    assert str(errors.InvalidConfig("flush.ms must be a number.")) == "flush.ms must be a number."
    assert str(errors.NotController()) == "This node is not the controller."
    assert str(errors.NotController(None)) == "This node is not the controller."


@pytest.mark.parametrize("error", BY_CODE.values(), ids=lambda error: error.name)
def test_errors_have_distinct_sentences(error):
    assert str(error()).endswith(".")
    assert str(error()) not in {str(other()) for other in BY_CODE.values() if other is not error}


def test_raise_for_raises_the_class_of_a_code():
    raise_for(0)
    with pytest.raises(errors.CorruptMessage):
        raise_for(2)
    with pytest.raises(errors.InvalidRecord, match="no key"):
        raise_for(87, "no key")


def test_unknown_code_raises_unknown_server_error():
    with pytest.raises(errors.UnknownServerError, match="29999"):
        raise_for(29_999)


def test_retriable_errors_with_stale_metadata_are_distinct():
    assert issubclass(errors.NotEnoughReplicas, Retriable)
    assert not issubclass(errors.NotEnoughReplicas, StaleMetadata)
    assert issubclass(errors.KafkaStorageError, StaleMetadata)


def test_copy_returns_another_error_with_the_same_message():
    error = errors.UnknownTopicOrPartition("topic 'orders'")
    copied = error.copy()
    assert copied is not error
    assert type(copied) is errors.UnknownTopicOrPartition and str(copied) == "topic 'orders'"
    assert str(error.again()) == "topic 'orders'", "the former name"
