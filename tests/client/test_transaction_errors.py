"""Errors of transactions by class, from a scripted coordinator: which the producer retries, which
end the transaction, and which end the producer."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter

import pytest

from kafkalite import AsyncConsumer, AsyncProducer, Consumer, GroupMetadata, Producer
from kafkalite.client.producer.lifetime import EXIT_TIMEOUT_S
from kafkalite.client.producer.producer_transaction_state import Phase
from kafkalite.errors import (
    BY_CODE,
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    RequestTimedOut,
    TransactionAborted,
)
from kafkalite.protocol.schemas.cluster import API_VERSIONS, METADATA
from kafkalite.protocol.schemas.groups import FIND_COORDINATOR
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.transactions import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    TXN_OFFSET_COMMIT,
)
from tests.client.scripted_broker import CloseConnection, ScriptedBroker

QUICK = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 2, "reconnect_backoff_ms": 1,
         "max_block_ms": 10_000, "native": "off", "linger_ms": 0}  # fmt: skip
WAIT_S = 10
CLOSE = -99
"""Instead of an error code: the connection is closed."""


class ScriptedCoordinator(ScriptedBroker):
    """One broker that is leader and coordinator; `errors` has the codes of the next responses."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.errors: dict[object, list[int]] = {}
        self.epoch = -1
        self.used: Counter[object] = Counter()
        self.versions_of: dict[object, set[int]] = {}
        apis = (
            METADATA, FIND_COORDINATOR, PRODUCE, ADD_OFFSETS_TO_TXN, ADD_PARTITIONS_TO_TXN, END_TXN,
            INIT_PRODUCER_ID, TXN_OFFSET_COMMIT,
        )  # fmt: skip
        super().__init__({API_VERSIONS: self.features, **dict.fromkeys(apis, self.respond)})

    def features(self, request):
        level = {"name": "transaction.version", "max_version_level": self.version}
        found = [level] if self.version else []
        return {
            **self.versions_served(request),
            "finalized_features_epoch": 1,
            "finalized_features": found,
        }

    def respond(self, request):
        api, body = request.api, request.body
        self.used[api] += 1
        self.versions_of.setdefault(api, set()).add(request.version)
        codes = self.errors.get(api)
        code = codes.pop(0) if codes else 0
        if code == CLOSE:
            raise CloseConnection
        if api is METADATA:
            return self.metadata(body)
        if api is FIND_COORDINATOR:
            entry = {"node_id": 0, "host": "127.0.0.1", "port": self.port}
            return {"coordinators": [{"key": body.coordinator_keys[0], **entry}]}
        if api is INIT_PRODUCER_ID:
            self.epoch += not code
            return {"error_code": code, "producer_id": 7, "producer_epoch": self.epoch}
        if api is END_TXN:
            self.epoch += request.version >= 5 and not code
            return {"error_code": code, "producer_id": 7, "producer_epoch": self.epoch}
        if api is ADD_OFFSETS_TO_TXN:
            return {"error_code": code}
        return self.partitions(api, request, code)

    def partitions(self, api, request, code):
        body = request.body
        if api is ADD_PARTITIONS_TO_TXN:
            topics = [
                {"name": topic.name, "results_by_partition": [
                    {"partition_index": index, "partition_error_code": code}
                    for index in topic.partitions]}
                for topic in body.v3_and_below_topics
            ]  # fmt: skip
            return {"results_by_topic_v3_and_below": topics}
        if api is TXN_OFFSET_COMMIT:
            topics = [
                {"name": topic.name, "partitions": [
                    {"partition_index": each.partition_index, "error_code": code}
                    for each in topic.partitions]}
                for topic in body.topics
            ]  # fmt: skip
            return {"topics": topics}
        topics = [
            {"name": topic.name, "topic_id": topic.topic_id, "partition_responses": [
                {"index": each.index, "error_code": code, "base_offset": 0}
                for each in topic.partition_data]}
            for topic in body.topic_data
        ]  # fmt: skip
        return {"responses": topics}

    def metadata(self, body):
        return {
            "cluster_id": "scripted", "controller_id": 0,
            "brokers": [{"node_id": 0, "host": "127.0.0.1", "port": self.port}],
            "topics": [
                {"name": topic.name, "topic_id": b"t" * 16, "partitions": [
                    {"partition_index": 0, "leader_id": 0, "leader_epoch": 0,
                     "replica_nodes": [0], "isr_nodes": [0]}]}
                for topic in body.topics or ()
            ],
        }  # fmt: skip


@pytest.fixture(params=[1, 2], ids=["version 1", "version 2"])
def scripted(request):
    with ScriptedCoordinator(request.param) as made:
        yield made


@pytest.fixture
def producer(scripted):
    with Producer(scripted.address, transactional_id="id", **QUICK) as made:
        yield made


def transact(producer, offsets=True):
    with producer.transaction() as transaction:
        producer.send("t", b"0")
        if offsets:
            transaction.commit_offsets({("t", 0): 1}, "group")


def apis_of(version):
    added = [ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN] if version == 1 else []
    return [INIT_PRODUCER_ID, *added, TXN_OFFSET_COMMIT, PRODUCE, END_TXN]


def test_transaction_uses_the_requests_and_versions_of_its_protocol(scripted, producer):
    transact(producer)
    transact(producer)
    expected = apis_of(scripted.version)
    assert all(scripted.used[api] for api in expected)
    assert not any(scripted.used[api] for api in (ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN)
                   if api not in expected)  # fmt: skip
    assert scripted.used[INIT_PRODUCER_ID] == 1
    assert (max(scripted.versions_of[PRODUCE]) >= 12) is (scripted.version == 2)
    assert (max(scripted.versions_of[END_TXN]) >= 5) is (scripted.version == 2)
    assert (max(scripted.versions_of[TXN_OFFSET_COMMIT]) >= 5) is (scripted.version == 2)


@pytest.mark.parametrize("code", [14, 15, 16, 51, CLOSE])
def test_retriable_errors_of_the_coordinator_are_retried(scripted, producer, code):
    for api in apis_of(scripted.version):
        if api is not PRODUCE:
            scripted.errors[api] = [code, code]
    transact(producer)
    transact(producer)


@pytest.mark.parametrize("code", [3, 6, 19, 51, CLOSE])
def test_retriable_errors_of_produce_are_retried(scripted, producer, code):
    scripted.errors[PRODUCE] = [code, code]
    transact(producer)


ABORTABLE = [
    ("offsets", TXN_OFFSET_COMMIT, code) for code in (22, 25, 29, 30, 82, 120)
] + [("records", PRODUCE, code) for code in (10, 29, 45, 47, 48, 87, 120)]  # fmt: skip


@pytest.mark.parametrize(("what", "api", "code"), ABORTABLE)
def test_abortable_error_is_raised_and_the_next_transaction_works(
    scripted, producer, what, api, code
):
    transact(producer)
    scripted.errors[api] = [code]
    ended = scripted.used[END_TXN]
    with pytest.raises(BY_CODE[code]):
        transact(producer, offsets=what == "offsets")
    assert scripted.used[END_TXN] == ended + 1, "it was aborted"
    epoch = scripted.epoch
    transact(producer)
    assert scripted.epoch == epoch + (1 if scripted.version == 1 else 0) + (scripted.version == 2)


def test_error_of_an_added_partition_is_abortable(scripted, producer):
    if scripted.version == 2:
        return
    for code in (29, 55, 120):
        scripted.errors[ADD_PARTITIONS_TO_TXN] = [code]
        with pytest.raises(BY_CODE[code]):
            transact(producer)
        transact(producer)


@pytest.mark.parametrize("code", [47, 48, 49, 53, 90])
def test_fatal_error_ends_the_producer(scripted, code):
    for api in apis_of(scripted.version):
        if api is PRODUCE and code not in (49, 53, 90):
            continue
        if api is INIT_PRODUCER_ID and code in (48, 49):
            continue
        expected = ProducerFenced if code in (47, 90) else BY_CODE[code]
        with Producer(scripted.address, transactional_id="id", **QUICK) as producer:
            scripted.errors[api] = [code]
            with pytest.raises(expected):
                transact(producer)
            with pytest.raises(expected):
                producer.transaction().begin()
            with pytest.raises(KafkaError):
                producer.send("t", b"0")


def test_epoch_that_a_leader_refuses_is_fenced_if_the_coordinator_says_so(scripted, producer):
    transact(producer)
    scripted.errors[PRODUCE] = [InvalidProducerEpoch.code]
    scripted.errors[END_TXN] = [ProducerFenced.code]
    with pytest.raises(ProducerFenced):
        transact(producer, offsets=False)


def test_commit_that_timed_out_can_only_be_repeated(scripted, producer):
    transaction = producer.transaction()
    transaction.begin()
    producer.send("t", b"0")
    scripted.errors[END_TXN] = [51] * 1_000
    with pytest.raises(KafkaError) as timed_out:
        transaction.commit(timeout=0.1)
    assert timed_out.value.retriable
    with pytest.raises(RuntimeError, match="not known"):
        transaction.abort()
    with pytest.raises(RuntimeError, match="not known"):
        producer.transaction().begin()
    scripted.errors.clear()
    transaction.commit()
    with pytest.raises(RuntimeError, match="has ended"):
        transaction.commit()
    transact(producer)


def test_abort_that_timed_out_is_completed_by_the_next_transaction(scripted, producer):
    transaction = producer.transaction()
    transaction.begin()
    producer.send("t", b"0").result(WAIT_S)
    scripted.errors[END_TXN] = [51] * 1_000
    with pytest.raises(KafkaError):
        transaction.abort(timeout=0.1)
    scripted.errors.clear()
    ended = scripted.used[END_TXN]
    transact(producer)
    assert scripted.used[END_TXN] >= ended + 2


def test_records_that_cannot_be_written_in_time_can_be_waited_for_or_aborted(scripted, producer):
    for ends in ("commit", "abort"):
        scripted.errors[PRODUCE] = [19] * 10_000
        transaction = producer.transaction()
        transaction.begin()
        delivery = producer.send("t", b"0")
        with pytest.raises(RequestTimedOut, match="transaction is open"):
            transaction.commit(timeout=0.1)
        with pytest.raises(RuntimeError, match="before its records were written"):
            producer.transaction().begin()
        scripted.errors.clear()
        if ends == "commit":
            transaction.commit()
            assert delivery.exception(WAIT_S) is None
        else:
            transaction.abort()
            assert delivery.exception(WAIT_S) is None or isinstance(
                delivery.exception(), TransactionAborted
            )
    transact(producer)


def test_failed_batch_fails_the_others_of_its_transaction(scripted, producer):
    transact(producer)
    scripted.errors[PRODUCE] = [10]
    transaction = producer.transaction()
    transaction.begin()
    first = producer.send("t", b"0")
    assert first.exception(WAIT_S).code == 10
    with pytest.raises(KafkaError) as refused:
        producer.send("t", b"1")
    assert refused.value.code == 10
    with pytest.raises(KafkaError) as refused:
        transaction.commit()
    assert refused.value.code == 10
    transaction.abort()
    producer.check_unseen()  # the commit has raised it


def test_calls_out_of_order_are_refused(scripted, producer):
    transaction = producer.transaction()
    for call in (transaction.commit, transaction.abort):
        with pytest.raises(RuntimeError, match="not open"):
            call()
    with pytest.raises(InvalidTxnState, match="only inside a transaction"):
        producer.send("t", b"0")
    with transaction:
        with pytest.raises(RuntimeError, match="is open"):
            producer.transaction().begin()
        with pytest.raises(TypeError, match="need the group"):
            transaction.commit_offsets({("t", 0): 1})
        with pytest.raises(RuntimeError, match="shared"):
            _ = transaction.identity
    assert producer._state.transaction.phase is Phase.NONE
    with Producer(scripted.address, native="off") as plain:
        with pytest.raises(RuntimeError, match="transactional id"):
            plain.transaction()


def test_forked_child_leaves_the_transaction_to_its_parent(scripted, producer):
    transaction = producer.transaction()
    with transaction:
        producer.send("t", b"0").result(WAIT_S)
        child = os.fork()
        if not child:
            code = 1
            try:
                transaction.__exit__(None, None, None)
                with pytest.raises(RuntimeError, match="after a fork"):
                    transaction.commit()
                with pytest.raises(RuntimeError, match="after a fork"):
                    producer.transaction().begin()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        ended = scripted.used[END_TXN]
    assert scripted.used[END_TXN] == ended + 1


@pytest.mark.parametrize("name", ["begin", "commit", "abort"])
def test_call_in_a_delivery_callback_is_refused_at_once(scripted, name):
    errors = []

    def on_delivery(*_):
        try:
            getattr(transaction, name)()
        except RuntimeError as error:
            errors.append(str(error))

    # Nothing is sent, and no callback runs, before the commit.
    settings = QUICK | {"linger_ms": 60_000}
    with Producer(scripted.address, transactional_id="id", **settings) as producer:
        transaction = producer.transaction()
        transaction.begin()
        producer.send("t", b"0", on_delivery=on_delivery)
        transaction.commit(2)
    assert "A delivery callback cannot wait" in errors[0]


@pytest.mark.parametrize("name", ["commit", "abort"])
def test_late_call_of_an_ended_transaction_leaves_the_next_one_open(
    scripted, producer, monkeypatch, name
):
    calls = producer._transactions
    called, may_go_on = threading.Event(), threading.Event()
    deadline = calls.deadline

    def deadline_later(timeout):
        if threading.current_thread() is late:
            called.set()
            assert may_go_on.wait(WAIT_S)
        return deadline(timeout)

    monkeypatch.setattr(calls, "deadline", deadline_later)
    first, second = producer.transaction(), producer.transaction()
    errors = []

    def call():
        try:
            getattr(first, name)()
        except RuntimeError as error:
            errors.append(str(error))

    late = threading.Thread(target=call)
    first.begin()
    late.start()
    assert called.wait(WAIT_S)
    first.abort()
    second.begin()
    producer.send("t", b"0")
    may_go_on.set()
    late.join()
    assert "was not begun, or has ended" in errors[0]
    second.commit()


def test_second_transaction_of_a_failed_join_is_refused(scripted, producer):
    transact(producer)
    identity = producer._state.transaction.identity
    with Producer(scripted.address, transactional_id="id", **QUICK) as writer:
        scripted.errors[PRODUCE] = [10]
        with pytest.raises(KafkaError), writer.transaction(identity=identity):
            writer.send("t", b"0")
        with pytest.raises(RuntimeError, match="join the next one"):
            writer.transaction(identity=identity).begin()
    assert scripted.used[INIT_PRODUCER_ID] == 1


OFFSETS = {("t", 0): 1}
UNSUITABLE = {
    "a list": ([("t", 0, 1)], "g"),
    "None": (None, "g"),
    "a class": (Consumer, "g"),
    "an integer as group": (OFFSETS, 5),
    "bytes as group": (OFFSETS, b"g"),
    "a tuple as group": (OFFSETS, ("g",)),
}


@pytest.mark.parametrize("name", UNSUITABLE)
def test_offsets_and_groups_of_other_types_are_refused(scripted, producer, name):
    offsets, group = UNSUITABLE[name]
    with producer.transaction() as transaction:
        with pytest.raises(TypeError, match=r"offsets must be|a group must be"):
            transaction.commit_offsets(offsets, group)
        transaction.commit_offsets(OFFSETS, GroupMetadata("g"))


def test_offsets_of_a_consumer_of_the_other_kind_are_refused(scripted, producer):
    async def commit():
        async with (
            AsyncConsumer(scripted.address, group="g") as awaited,
            AsyncProducer(scripted.address, transactional_id="other", **QUICK) as another,
        ):
            with pytest.raises(TypeError, match="open Consumer"):
                transaction.commit_offsets(awaited)
            with Consumer(scripted.address, group="g") as consumer:
                async with another.transaction() as of_tasks:
                    with pytest.raises(TypeError, match="open AsyncConsumer"):
                        await of_tasks.commit_offsets(consumer)

    with producer.transaction() as transaction:
        asyncio.run(commit())


def test_timeout_includes_the_wait_for_a_call_of_another_thread(scripted, producer):
    transaction = producer.transaction()
    transaction.begin()
    producer.send("t", b"0").result(WAIT_S)
    scripted.errors[END_TXN] = [51] * 100_000
    requested = scripted.used[END_TXN]
    committing = threading.Thread(target=transaction.commit)
    committing.start()
    while scripted.used[END_TXN] == requested:
        pass
    try:
        with pytest.raises(RequestTimedOut, match="Another thread's call"):
            transaction.abort(timeout=0.05)
        with pytest.raises(RequestTimedOut, match="Another thread's call"):
            producer.init_transactions(timeout=0.05)
    finally:
        scripted.errors.clear()
        committing.join()


def test_timeout_of_close_holds_for_the_abort_and_the_records_together(
    scripted, producer, monkeypatch
):
    transaction = producer.transaction()
    transaction.begin()
    producer.send("t", b"0").result(WAIT_S)
    scripted.errors[END_TXN] = [51] * 100_000
    left, close = [], producer._lifetime.close
    monkeypatch.setattr(producer._lifetime, "close", left.append)
    producer.close(0.2)
    close(0)
    assert left[0] < 0.2


def test_closed_producer_begins_no_transaction(scripted, producer):
    transact(producer)
    transaction = producer.transaction()
    producer.close()
    with pytest.raises(RuntimeError, match="is closed"):
        transaction.begin()


def test_block_in_which_the_producer_was_closed_raises(scripted, producer):
    with pytest.raises(RuntimeError, match="aborted, not committed"), producer.transaction():
        producer.send("t", b"0")
        producer.close()
    with Producer(scripted.address, transactional_id="id", **QUICK) as another:
        with another.transaction() as transaction:
            transaction.commit()
            another.close()  # nothing was lost


@pytest.mark.parametrize(
    ("error", "timeout"),
    [(KeyboardInterrupt, EXIT_TIMEOUT_S), (SystemExit, EXIT_TIMEOUT_S), (ValueError, None)],
)
def test_program_that_is_ended_waits_only_briefly_for_its_abort(
    scripted, producer, monkeypatch, error, timeout
):
    calls, timeouts = producer._transactions, []
    deadline = calls.deadline
    monkeypatch.setattr(calls, "deadline", lambda wait: (timeouts.append(wait), deadline(wait))[1])
    with pytest.raises(error), producer.transaction():
        producer.send("t", b"0")
        raise error
    assert timeouts[-1] == timeout
    monkeypatch.setattr(calls, "_end", lambda *_: raise_error(error))
    with pytest.raises(error), producer.transaction():
        producer.send("t", b"0")
    assert timeouts[-1] == timeout


def raise_error(error):
    raise error


def test_next_transaction_of_a_task_begins_after_one_that_was_cancelled(scripted):
    async def transact_after_cancelling():
        async with AsyncProducer(scripted.address, transactional_id="id", **QUICK) as producer:
            scripted.errors[INIT_PRODUCER_ID] = [51] * 100_000
            beginning = asyncio.create_task(producer.transaction().__aenter__())
            while not scripted.used[INIT_PRODUCER_ID]:
                await asyncio.sleep(0.001)
            beginning.cancel()
            with pytest.raises(asyncio.CancelledError):
                await beginning
            scripted.errors.clear()
            async with producer.transaction():
                await producer.send("t", b"0")
            assert producer._producer._state.transaction.phase is Phase.NONE

    asyncio.run(transact_after_cancelling())
    assert scripted.used[END_TXN] == 1
