"""Hints in errors: for programs written for other clients, or run without pyarrow."""

from __future__ import annotations

import asyncio

import pytest

from kafkalite import AsyncConsumer, AsyncProducer, Consumer, Producer
from kafkalite._ext.gathering import Delivery
from tests.client.test_producer_process import run

NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("name", "hint"),
    [("start", "with block"), ("stop", "close()"), ("send_and_wait", "result()"),
     ("create_batch", "batch_size"), ("begin_transaction", "producer.transaction()"),
     ("produce", "send(")],
)  # fmt: skip
def test_missing_producer_method_names_its_replacement(name, hint):
    async def ask():
        producer = AsyncProducer(NOWHERE)
        with pytest.raises(AttributeError) as raised:
            getattr(producer, name)
        await producer.close(0)
        return str(raised.value)

    assert hint in asyncio.run(ask())
    with Producer(NOWHERE) as producer:
        with pytest.raises(AttributeError) as raised:
            getattr(producer, name)
        assert hint in str(raised.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("start", "with block"), ("stop", "close()"), ("getone", "poll()"),
     ("end_offsets", "watermarks"), ("seek_to_committed", "committed"), ("highwater", "high")],
)  # fmt: skip
def test_missing_consumer_method_names_its_replacement(name, hint):
    async def ask():
        async with AsyncConsumer(NOWHERE) as consumer:
            with pytest.raises(AttributeError, match=f"^AsyncConsumer has no {name}") as raised:
                getattr(consumer, name)
        return str(raised.value)

    assert hint in asyncio.run(ask())
    with Consumer(NOWHERE) as consumer, pytest.raises(AttributeError) as raised:
        getattr(consumer, name)
    assert hint in str(raised.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("get", r"use result\(timeout\)"), ("add_callback", "add_done_callback"),
     ("add_errback", "on_delivery")],
)  # fmt: skip
def test_missing_delivery_method_names_its_replacement(name, hint):
    with pytest.raises(AttributeError, match=f"Delivery has no {name}.*{hint}"):
        getattr(Delivery(None, 0, 0), name)


def test_consumer_that_reads_nothing_says_so():
    with Consumer(NOWHERE) as consumer:
        for call in (consumer.poll, consumer.to_table, lambda: next(consumer.batches())):
            with pytest.raises(RuntimeError, match="Nothing is subscribed or assigned"):
                call()


@pytest.mark.parametrize("timeout", [-1, -0.5, float("nan")])
def test_negative_timeout_is_rejected_with_a_hint(timeout):
    match = "None to wait without limit"
    with Consumer(NOWHERE, topics=["t"]) as consumer:
        for call in (consumer.poll, lambda timeout: consumer.consume(5, timeout)):
            with pytest.raises(ValueError, match=match):
                call(timeout)
    with Producer(NOWHERE) as producer:
        for call in (producer.flush, producer.close):
            with pytest.raises(ValueError, match=match):
                call(timeout)
        assert producer.is_open


@pytest.mark.parametrize("missing", ["pyarrow", "numpy"])
def test_table_methods_without_pyarrow_name_the_install_command(missing):
    ended = run(
        """
        import sys
        sys.modules[sys.argv[1]] = None     # as if it were not installed
        from kafkalite import Consumer, Producer
        with Producer("127.0.0.1:1") as producer, Consumer("127.0.0.1:1") as consumer:
            for call in (
                lambda: producer.send_arrow("t", []), lambda: producer.send_table("t", []),
                consumer.batches, consumer.to_table,
            ):
                try:
                    call()
                except ImportError as error:
                    print(error)
        """,
        missing,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert len(lines) == 4
    assert all(f"need {missing}: pip install 'kafkalite[arrow]'" in line for line in lines)
