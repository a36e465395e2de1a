"""Offsets committed in transactions.

TxnOffsetCommit   v0–v6   v3 names the member and its generation (KIP-447); v5 adds the partition
                          of __consumer_offsets to the transaction (KIP-890); v6 by topic id

The offsets are records of a transaction in the partition that stores the group.  Before the first
ones, the transaction coordinator verifies that the transaction has this partition, or adds it since
v5.

Errors by version: COORDINATOR_LOAD_IN_PROGRESS since v2, COORDINATOR_NOT_AVAILABLE before; those of
the verification are in transaction_verifier.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.future import Future, all_of
from kafkalite.broker.handlers.groups import GroupsNode
from kafkalite.broker.handlers.offset_commits import (
    PendingEntries,
    offset_to_commit,
    readable_topic,
    topic_identity,
)
from kafkalite.broker.handlers.transactions.transactions_node import TransactionsNode
from kafkalite.broker.replica.transaction_verifier import RequestTransaction
from kafkalite.broker.security import GROUP, READ, TRANSACTIONAL_ID, WRITE
from kafkalite.broker.served_apis import Response, ServingNode, serves
from kafkalite.broker.stepping import ENTRIES_AT_ONCE, Work, in_steps
from kafkalite.coordination.groups.group_coordinator import (
    Decision,
    GroupCoordinator,
    OffsetToCommit,
)
from kafkalite.coordination.transaction import ProducerEpoch
from kafkalite.coordination.transaction_coordinator import check_id
from kafkalite.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    IllegalGeneration,
    InvalidGroupId,
    KafkaError,
    KafkaStorageError,
    NotCoordinator,
    StaleMemberEpoch,
)
from kafkalite.protocol.schemas.transactions import TXN_OFFSET_COMMIT
from kafkalite.storage.state.verification import NOT_REQUIRED, VerificationGuard

LOADING_SINCE = 2
"""The version since which clients know COORDINATOR_LOAD_IN_PROGRESS."""

MEMBER_EPOCHS_SINCE = 6
"""The version since which clients know STALE_MEMBER_EPOCH."""

NO_SEQUENCE = -1


class TransactionalOffsetsNode(GroupsNode, TransactionsNode, Protocol):
    """The components that commits in transactions use."""


@serves(TXN_OFFSET_COMMIT, versions="0-6", at=ServingNode.COORDINATOR, is_cancellable=False)
def txn_offset_commit(
    node: TransactionalOffsetsNode, request: Any, client: ClientContext
) -> Work[Response | Future[Response]]:
    """Commit offsets in a transaction; each partition succeeds or fails on its own."""
    entries = PendingEntries()
    queues, ticket = node.groups.commit_queues, object()
    is_verified_later = False
    try:
        yield from queues.wait(request.group_id, ticket)
        commits = yield from _commits(node, client, request, entries)
        if not commits:
            return {"topics": entries.topics}
        transaction = RequestTransaction.of_commit(request.transactional_id, client.version)
        verified = _verified(node, request, transaction)
        is_verified_later = True
    finally:
        if not is_verified_later:
            queues.done(request.group_id, ticket)
    response: Future[Response] = Future()

    def decide(guard: VerificationGuard | None, error: KafkaError | None) -> None:
        decisions = _decide(node, request, client.version, commits, guard, error, entries)
        response.follow(in_steps(node.reactor, in_turn(decisions), is_cancellable=False))

    def in_turn(decisions: Work[Future[Response]]) -> Work[Future[Response]]:
        try:
            return (yield from decisions)
        finally:
            queues.done(request.group_id, ticket)

    verified.then(decide)
    return response


def _decide(
    node: TransactionalOffsetsNode,
    request: Any,
    version: int,
    commits: Sequence[OffsetToCommit],
    guard: VerificationGuard | None,
    error: KafkaError | None,
    entries: PendingEntries,
) -> Work[Future[Response]]:
    """Submit the commits to the group's coordinator, unless their verification has failed."""

    def refused(error: KafkaError) -> Response:
        return {"error": _client_error(error, version)}

    decisions: list[Future[None]] = []
    opened = entries.open
    for begin in range(0, len(commits), ENTRIES_AT_ONCE):
        part = slice(begin, begin + ENTRIES_AT_ONCE)
        entries.open = opened[part]
        decide = partial(_commit, request, commits[part], version, guard)
        decided: Future[Response] = Future()
        try:
            if error is not None:
                raise error.copy()
            decided = node.groups.host_of(request.group_id).request(decide)
        except KafkaError as raised:
            decided.fail(raised)
        decisions.append(decided.recover(refused).map(entries.completion()))
        yield
    return all_of(decisions).map(lambda _: {"topics": entries.topics})


def _verified(
    node: TransactionalOffsetsNode, request: Any, transaction: RequestTransaction
) -> Future[VerificationGuard | None]:
    """Return the guard with which the records may begin a transaction; None if it is open."""
    try:
        if not request.group_id:
            raise InvalidGroupId("The group id is empty.")
        partition = node.groups.host_of(request.group_id).partition
        if not (transaction.adds or node.replicas.verifies_transactions):
            return Future.of(NOT_REQUIRED)
        check_id(transaction.transactional_id)
        producer = ProducerEpoch(request.producer_id, request.producer_epoch)
        guard = partition.log.begin_verification(
            *producer, NO_SEQUENCE, is_implicit=transaction.adds
        )
    except KafkaError as error:
        failed: Future[VerificationGuard | None] = Future()
        failed.fail(error)
        return failed
    if guard is None:
        return Future.of(None)
    verified: Future[VerificationGuard | None] = Future()

    def settle(_: None, error: KafkaError | None) -> None:
        if error is not None:
            verified.fail(transaction.commit_error(error))
        else:
            verified.resolve(guard)

    address = (partition.topic, partition.index)
    node.replicas.verifier.verify(
        transaction.transactional_id, producer, address, adds=transaction.adds
    ).then(settle)
    return verified


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
            known = entries.open_partition(results, image, error, requested.partition_index)
            if known is not None:
                commits.append(offset_to_commit(known, requested))
            yield
        yield
    return commits


def _authorization_error(request: Any, client: ClientContext) -> KafkaError | None:
    """Return the error of a principal without the right to the id or the group, or None."""
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


def _client_error(error: KafkaError, version: int) -> KafkaError:
    """Return the error as the client's version knows it."""
    if isinstance(error, KafkaStorageError):
        return NotCoordinator(str(error))
    if isinstance(error, CoordinatorLoadInProgress) and version < LOADING_SINCE:
        return CoordinatorNotAvailable(str(error))
    if isinstance(error, StaleMemberEpoch) and version < MEMBER_EPOCHS_SINCE:
        return IllegalGeneration(str(error))
    return error
