"""Start offsets of share groups, at the group coordinator.

DescribeShareGroupOffsets   v0–v1   v1 has the lag (KIP-1226), and our counts of deliveries
AlterShareGroupOffsets      v0
DeleteShareGroupOffsets     v0

The lag and the counts come from the leaders of the partitions (coordinator/share_progress.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.error_responses import error_fields, outcome_fields
from kafkalite.broker.future import Future, all_of
from kafkalite.broker.handlers.groups import GroupsNode
from kafkalite.broker.handlers.share.share_groups import report_initialized
from kafkalite.broker.security import DELETE, DESCRIBE, GROUP, READ, TOPIC
from kafkalite.broker.served_apis import Response, ServingNode, serves
from kafkalite.broker.stepping import Work
from kafkalite.coordination.features import SHARE_VERSION, check_finalized
from kafkalite.coordination.groups.request_checks import check_group_id
from kafkalite.coordination.groups.share.share_group import SharedTopic
from kafkalite.coordination.share.share_partition import ShareProgress
from kafkalite.coordination.share.state_requests import (
    Outcome,
    StateDeletion,
    StateInitialization,
    StateSummary,
)
from kafkalite.coordination.topic_names import SHARE_GROUP_STATE
from kafkalite.errors import (
    CoordinatorNotAvailable,
    KafkaError,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from kafkalite.ids import NO_ID
from kafkalite.protocol.schemas.share import (
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_SHARE_GROUP_OFFSETS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
)
from kafkalite.protocol.schemas.share_records import (
    NO_COUNT,
    NO_OFFSET,
    SharePartitionKey,
    ShareSnapshot,
)

NO_LAG = -1
LAG_SINCE = 1
"""The DescribeShareGroupOffsets version that has the lag."""


# -- DescribeShareGroupOffsets -------------------------------------------------------------------


@serves(
    DESCRIBE_SHARE_GROUP_OFFSETS, versions="0-1", at=ServingNode.COORDINATOR, feature=SHARE_VERSION
)
def describe_share_group_offsets(
    node: GroupsNode, request: Any, client: ClientContext
) -> Work[Future[Response]]:
    """Return the start offsets and the lag of share groups."""
    groups: list[Future[DescribedGroupOffsets]] = []
    for wanted in request.groups:
        groups.append((yield from _describe(node, client, wanted)))
    done: Future[Response] = Future()

    def described(found: list[DescribedGroupOffsets] | None, error: KafkaError | None) -> None:
        if found is None:
            assert error is not None
            done.fail(error)
            return
        response = {"groups": [group.response for group in found]}
        states = [state for group in found for state in group.states]
        if client.version < LAG_SINCE:
            done.resolve(response)
            return

        def add_progress(found: Mapping[SharePartitionKey, ShareProgress]) -> Response:
            for key, state, entry in states:
                progress = found.get(key)
                if progress is not None:
                    entry["lag"] = _lag(state, progress.end_offset)
                    if request.includes_delivery_counts:
                        entry["in_flight_count"] = progress.in_flight_count
                        entry["delivery_count"] = progress.delivery_count
            return response

        done.follow(node.share_progress.find([state.key for state in states]).map(add_progress))

    all_of(groups).then(described)
    return done


class DescribedState(NamedTuple):
    """The stored state of a partition, and the entry of the response that describes it."""

    key: SharePartitionKey
    state: ShareSnapshot
    entry: Response


class DescribedGroupOffsets(NamedTuple):
    """The response for a group, and the states in it, whose lag is not known yet."""

    response: Response
    states: Sequence[DescribedState] = ()


def _describe(
    node: GroupsNode, client: ClientContext, wanted: Any
) -> Work[Future[DescribedGroupOffsets]]:
    group_id = wanted.group_id
    yield

    def refuse(error: KafkaError) -> DescribedGroupOffsets:
        return DescribedGroupOffsets({"group_id": group_id, "topics": [], **error_fields(error)})

    try:
        check_finalized(node.image, SHARE_VERSION)
        client.must(DESCRIBE, GROUP, group_id)
        machine = node.groups.host_of(group_id).machine
        topics = wanted.topics
        names: Mapping[str, Sequence[int]]
        if topics is None:
            initialized = machine.share_partitions(group_id).initialized
            names = {topic.name: sorted(topic.partitions) for topic in initialized.values()}
        else:
            names = {topic.topic_name: topic.partitions for topic in topics}
    except KafkaError as error:
        return Future.of(refuse(error))
    keys: list[SharePartitionKey] = []
    entries: list[Response] = []
    described: list[Response] = []
    for name, indexes in names.items():
        known = node.image.topics.get(name)
        may_describe = client.may(DESCRIBE, TOPIC, name)
        partitions: list[Response] = []
        topic_id = known.topic_id if known is not None and may_describe else NO_ID
        described.append({"topic_name": name, "topic_id": topic_id, "partitions": partitions})
        for index in indexes:
            yield
            entry: Response = {"partition_index": index, "start_offset": NO_OFFSET, "lag": NO_LAG}
            partitions.append(entry)
            if not may_describe:
                entry |= error_fields(TopicAuthorizationFailed())
            elif known is not None:
                keys.append(SharePartitionKey(group_id, known.topic_id, index))
                entries.append(entry)

    def respond(outcomes: Sequence[Outcome]) -> DescribedGroupOffsets:
        states: list[DescribedState] = []
        for key, entry, outcome in zip(keys, entries, outcomes, strict=True):
            if isinstance(outcome, KafkaError):
                entry |= error_fields(outcome)
            elif outcome is not None:
                entry["start_offset"] = outcome.start_offset
                entry["leader_epoch"] = outcome.leader_epoch
                states.append(DescribedState(key, outcome, entry))
        response = {"group_id": group_id, "error_code": 0, "topics": described}
        return DescribedGroupOffsets(response, states)

    return node.share_coordinators.outcomes([StateSummary(key) for key in keys]).map(respond)


def _lag(state: ShareSnapshot, end_offset: int) -> int:
    """Return the number of records that are not done, or NO_LAG if it is not known."""
    if state.start_offset == NO_OFFSET:
        return NO_LAG
    done = 0 if state.delivery_complete_count == NO_COUNT else state.delivery_complete_count
    return max(0, end_offset - state.start_offset - done)


# -- AlterShareGroupOffsets ----------------------------------------------------------------------


class OffsetReset:
    """The partitions of an AlterShareGroupOffsets, with the entries of the response."""

    def __init__(self) -> None:
        self.responses: list[Response] = []
        self.starts: dict[SharePartitionKey, tuple[int, Response]] = {}
        """The new start offset and the entry of each partition that exists."""
        self.topics: dict[bytes, SharedTopic] = {}

    def add(self, node: GroupsNode, request: Any, client: ClientContext) -> Work[None]:
        """Add the partitions of a request."""
        for topic in request.topics:
            known = node.image.topics.get(topic.topic_name)
            may_read = client.may(READ, TOPIC, topic.topic_name)
            error = None if may_read else TopicAuthorizationFailed()
            topic_id = known.topic_id if known is not None else NO_ID
            existing = known.partitions if known is not None else {}
            partitions: list[Response] = []
            self.responses.append(
                {"topic_name": topic.topic_name, "topic_id": topic_id, "partitions": partitions}
            )
            indexes: set[int] = set()
            for each in topic.partitions:
                yield
                entry: Response = {"partition_index": each.partition_index}
                partitions.append(entry)
                if error is not None or each.partition_index not in existing:
                    entry |= error_fields(error or UnknownTopicOrPartition())
                    continue
                key = SharePartitionKey(request.group_id, topic_id, each.partition_index)
                self.starts[key] = each.start_offset, entry
                indexes.add(each.partition_index)
            if indexes:
                before = self.topics.get(topic_id, SharedTopic(topic.topic_name, frozenset()))
                self.topics[topic_id] = before._replace(partitions=before.partitions | indexes)


@serves(ALTER_SHARE_GROUP_OFFSETS, versions="0", at=ServingNode.COORDINATOR, feature=SHARE_VERSION)
def alter_share_group_offsets(
    node: GroupsNode, request: Any, client: ClientContext
) -> Work[Future[Response]]:
    """Set the start offsets of a share group without members."""
    check_finalized(node.image, SHARE_VERSION)
    client.must(READ, GROUP, request.group_id)
    check_group_id(request.group_id)
    host = node.groups.host_of(request.group_id)
    reset = OffsetReset()
    yield from reset.add(node, request, client)

    def initialize(decided: Response) -> Future[list[Outcome]]:
        return node.share_coordinators.outcomes(
            [
                StateInitialization(key, decided["state_epoch"], start_offset)
                for key, (start_offset, _) in reset.starts.items()
            ]
        )

    def initialized(outcomes: Sequence[Outcome]) -> Future[Response]:
        """Record the outcome; return the response once that is committed."""
        succeeded: list[tuple[bytes, int]] = []
        failed: list[tuple[bytes, int]] = []
        for (key, (_, entry)), outcome in zip(reset.starts.items(), outcomes, strict=True):
            is_failed = isinstance(outcome, KafkaError)
            entry |= outcome_fields(outcome if isinstance(outcome, KafkaError) else None)
            (failed if is_failed else succeeded).append((key.topic_id, key.partition))
        report_initialized(host, request.group_id, succeeded, failed)
        return host.read(lambda _: {"error_code": 0, "responses": reset.responses})

    if not reset.starts:
        return Future.of({"error_code": 0, "responses": reset.responses})
    done: Future[Response] = Future()

    def opened(_: None, error: KafkaError | None) -> None:
        if error is not None:
            done.fail(CoordinatorNotAvailable(str(error)))
            return
        host.request(
            lambda groups, token, now_ms, wall_ms: groups.begin_share_reset(
                request.group_id, reset.topics, token, now_ms, wall_ms
            )
        ).then(decided)

    def decided(response: Response | None, error: KafkaError | None) -> None:
        if response is None:
            assert error is not None
            done.fail(error)
        else:
            initialize(response).then(lambda outcomes, _: done.follow(initialized(outcomes or [])))

    if SHARE_GROUP_STATE in node.image.topics:
        opened(None, None)
    else:
        node.local_controller.open_internal_topic(SHARE_GROUP_STATE).then(opened)
    return done


# -- DeleteShareGroupOffsets ---------------------------------------------------------------------


@serves(DELETE_SHARE_GROUP_OFFSETS, versions="0", at=ServingNode.COORDINATOR, feature=SHARE_VERSION)
def delete_share_group_offsets(
    node: GroupsNode, request: Any, client: ClientContext
) -> Work[Future[Response]]:
    """Delete the states of topics in a share group without members."""
    check_finalized(node.image, SHARE_VERSION)
    group_id = request.group_id
    client.must(DELETE, GROUP, group_id)
    check_group_id(group_id)
    host = node.groups.host_of(group_id)
    errors: dict[str, KafkaError | None] = {}
    for topic in request.topics:
        yield
        may_read = client.may(READ, TOPIC, topic.topic_name)
        errors[topic.topic_name] = None if may_read else TopicAuthorizationFailed()
    names = [name for name, error in errors.items() if error is None]
    done: Future[Response] = Future()

    def decided(response: Response | None, error: KafkaError | None) -> None:
        if response is None:
            assert error is not None
            done.fail(error)
            return
        keys: list[SharePartitionKey] = response["keys"]
        node.share_coordinators.outcomes([StateDeletion(key) for key in keys]).then(
            lambda outcomes, _: deleted(keys, outcomes or [])
        )

    def deleted(keys: Sequence[SharePartitionKey], outcomes: Sequence[Outcome]) -> None:
        found = {key.topic_id for key in keys}
        failed: dict[bytes, KafkaError] = {}
        for key, outcome in zip(keys, outcomes, strict=True):
            if isinstance(outcome, KafkaError):
                failed[key.topic_id] = outcome
        topics: list[Response] = []
        for name, error in errors.items():
            known = node.image.topics.get(name)
            # A topic without states in the group has no id in the response.
            topic_id = known.topic_id if known is not None and known.topic_id in found else NO_ID
            reason = error or failed.get(topic_id)
            if reason is None and topic_id == NO_ID:
                reason = UnknownTopicOrPartition()
            topics.append({"topic_name": name, "topic_id": topic_id, **outcome_fields(reason)})
        ended = host.request(
            lambda groups, token, now_ms, wall_ms: groups.end_share_deletion(
                group_id, found - failed.keys(), token, now_ms, wall_ms
            )
        )
        done.follow(ended.map(lambda _: {"error_code": 0, "responses": topics}))

    host.request(
        lambda groups, token, now_ms, wall_ms: groups.begin_share_deletion(
            group_id, names, token, now_ms, wall_ms
        )
    ).then(decided)
    return done
