"""Offsets committed in transactions.

TxnOffsetCommit   v0–v6   v3 names the member and its generation (KIP-447); v5 adds the partition
                          of __consumer_offsets to the transaction (KIP-890); v6 by topic id

The offsets are records of a transaction in the partition that stores the group.  Before the first
ones, the transaction coordinator verifies that the transaction has this partition, or adds it since
v5.  Groups and transactions are coordinated by the same node, so the question stays on it.

Errors by version: TRANSACTION_ABORTABLE since v4, INVALID_TXN_STATE before;
COORDINATOR_LOAD_IN_PROGRESS since v2, COORDINATOR_NOT_AVAILABLE before.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.coordinator.group_coordinators import GroupHost
from kafkalite.broker.future import Future, all_of
from kafkalite.broker.handlers.groups import GroupsNode
from kafkalite.broker.handlers.offset_commits import (
    PendingEntries,
    partition_error_code,
    readable_topic,
    topic_identity,
)
from kafkalite.broker.handlers.transactions.transactions_node import TransactionsNode
from kafkalite.broker.security import GROUP, READ, TRANSACTIONAL_ID, WRITE
from kafkalite.broker.served_apis import Response, ServingNode, serves
from kafkalite.broker.stepping import ENTRIES_AT_ONCE, PAUSE, Work
from kafkalite.coordination.group_coordinator import Decision, GroupCoordinator, OffsetToCommit
from kafkalite.coordination.transaction import ProducerEpoch
from kafkalite.coordination.transaction_coordinator import check_id
from kafkalite.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidGroupId,
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    NotCoordinator,
    ProducerFenced,
    TransactionAbortable,
    raise_for,
)
from kafkalite.protocol.schemas.transactions import TXN_OFFSET_COMMIT
from kafkalite.storage.verification import NOT_REQUIRED, VerificationGuard

LOADING_SINCE = 2
"""The version since which clients know COORDINATOR_LOAD_IN_PROGRESS."""
ABORTABLE_SINCE = 4
"""The version since which clients know TRANSACTION_ABORTABLE (KIP-890)."""
IMPLICIT_SINCE = 5
"""The version since which the request adds its partition to the transaction (KIP-890)."""

RETRY_MS, RETRY_MS_MAX = 20, 100
"""While the previous transaction ends, it is asked again at this interval, for this time."""

NO_SEQUENCE = -1


class TransactionalOffsetsNode(GroupsNode, TransactionsNode, Protocol):
    """The components that commits in transactions use."""


@serves(TXN_OFFSET_COMMIT, versions="0-6", at=ServingNode.COORDINATOR, is_cancellable=False)
def txn_offset_commit(
    node: TransactionalOffsetsNode, request: Any, client: ClientContext
) -> Work[Response | Future[Response]]:
    """Commit offsets in a transaction; each partition succeeds or fails on its own."""
    entries = PendingEntries()
    decisions: list[Future[None]] = []
    queues, ticket = node.groups.commit_queues, object()
    try:
        yield from queues.wait(request.group_id, ticket)
        commits = yield from _commits(node, client, request, entries)
        if not commits:
            return {"topics": entries.topics}
        try:
            if not request.group_id:
                raise InvalidGroupId("The group id is empty.")
            host = node.groups.host_of(request.group_id)
            guard = yield from _guard(node, request, client.version, host)
        except KafkaError as error:
            entries.completion()({"error": _client_error(error, client.version)})
            return {"topics": entries.topics}
        opened = entries.open
        for begin in range(0, len(commits), ENTRIES_AT_ONCE):
            part = slice(begin, begin + ENTRIES_AT_ONCE)
            entries.open = opened[part]
            decided = host.request(partial(_commit, request, commits[part], client.version, guard))
            refused = partial(_refused, client.version)
            decisions.append(decided.recover(refused).map(entries.completion()))
            yield
    finally:
        queues.done(request.group_id, ticket)
    return all_of(decisions).map(lambda _: {"topics": entries.topics})


def _refused(version: int, error: KafkaError) -> Response:
    return {"error": _client_error(error, version)}


def _commits(
    node: TransactionalOffsetsNode, client: ClientContext, request: Any, entries: PendingEntries
) -> Work[list[OffsetToCommit]]:
    """Return the offsets that may be committed; the others get their error code in `entries`."""
    commits: list[OffsetToCommit] = []
    refusal = _authorization_error(request, client)
    for topic in request.topics:
        results = entries.topic(**topic_identity(topic))
        image, error = None, refusal
        if refusal is None:
            image, error = readable_topic(node, client, topic)
        for requested in topic.partitions:
            index = requested.partition_index
            code = partition_error_code(image, error, index)
            results.append({"partition_index": index, "error_code": code})
            if image is not None and not code:
                entries.open.append((results[-1], (image.name, index)))
                commits.append(
                    OffsetToCommit(
                        image.name,
                        index,
                        requested.committed_offset,
                        requested.committed_leader_epoch,
                        requested.committed_metadata or "",
                        image.topic_id,
                    )  # fmt: skip
                )
            yield
        yield
    return commits


def _authorization_error(request: Any, client: ClientContext) -> KafkaError | None:
    """Return the error of the whole request."""
    try:
        client.must(WRITE, TRANSACTIONAL_ID, request.transactional_id)
        client.must(READ, GROUP, request.group_id)
    except KafkaError as error:
        return error
    return None


def _commit(
    request: Any,
    commits: Sequence[OffsetToCommit],
    version: int,
    guard: VerificationGuard | None,
    groups: GroupCoordinator,
    token: Any,
    now_ms: int,
    wall_ms: int,
) -> Decision:
    return groups.commit_transactional_offsets(
        request, commits, token, now_ms, wall_ms, version, guard
    )


# -- verification --------------------------------------------------------------------------------


def _guard(
    node: TransactionalOffsetsNode, request: Any, version: int, host: GroupHost
) -> Work[VerificationGuard | None]:
    """Return the guard with which the records may begin a transaction; None if it is open."""
    is_implicit = version >= IMPLICIT_SINCE
    if not (is_implicit or node.replicas.verifies_transactions):
        return NOT_REQUIRED
    clock = node.reactor.clock
    guard = host.partition.log.producers.begin_verification(
        request.producer_id, request.producer_epoch, NO_SEQUENCE, clock.wall_ms(),
        is_implicit=is_implicit,
    )  # fmt: skip
    if guard is None:
        return None
    end_ms = clock.monotonic_ms() + (RETRY_MS_MAX if is_implicit else 0)
    while True:
        asked_ms = clock.monotonic_ms()
        try:
            yield from _ask(node, request, host, is_implicit=is_implicit)
        except ConcurrentTransactions:
            if asked_ms + RETRY_MS > end_ms:
                raise
        except NotCoordinator as error:
            # To the client it would mean the coordinator of the group.
            raise CoordinatorNotAvailable(str(error)) from None
        else:
            return guard
        while clock.monotonic_ms() < asked_ms + RETRY_MS:
            yield PAUSE


def _ask(
    node: TransactionalOffsetsNode, request: Any, host: GroupHost, *, is_implicit: bool
) -> Work[None]:
    """Have the transaction coordinator verify or add the partition; raise its error."""
    transactional_id: str = request.transactional_id
    check_id(transactional_id)
    producer = ProducerEpoch(request.producer_id, request.producer_epoch)
    partitions = frozenset({(host.partition.topic, host.partition.index)})
    transactions = node.transactions.host_of(transactional_id)
    if is_implicit:
        answered = transactions.request(
            lambda machine, token, now_ms, wall_ms: machine.add_partitions(
                transactional_id, producer, partitions, 2, token, now_ms, wall_ms
            )
        )
    else:
        answered = transactions.request(
            lambda machine, token, _, __: machine.verify_partitions(
                transactional_id, producer, partitions, token
            )
        )
    outcome: list[tuple[Response | None, KafkaError | None]] = []
    answered.then(lambda response, error: outcome.append((response, error)))
    while not outcome:
        yield PAUSE
    ((response, error),) = outcome
    if error is not None:
        raise error
    assert response is not None
    for code in response.get("codes", {}).values():
        raise_for(code)


def _client_error(error: KafkaError, version: int) -> KafkaError:
    """Return the error as the client's version knows it."""
    if isinstance(error, ProducerFenced):
        return InvalidProducerEpoch(str(error))
    if isinstance(error, TransactionAbortable) and version < ABORTABLE_SINCE:
        return InvalidTxnState(str(error))
    if isinstance(error, CoordinatorLoadInProgress) and version < LOADING_SINCE:
        return CoordinatorNotAvailable(str(error))
    return error
