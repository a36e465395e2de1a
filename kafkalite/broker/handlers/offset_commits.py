"""Committed offsets: commit, fetch and delete.

OffsetCommit      v2–v10   v10 by topic id
OffsetFetch       v1–v10   v8 for many groups at once, v10 by topic id
OffsetDelete      v0

A handler adds what the coordinator does not know: which topics exist, and authorization.  A large
request is passed to the coordinator ENTRIES_AT_ONCE partitions at a time.

With `require_stable` (v7), OffsetFetch has no offset of a partition whose offset a transaction may
change (KIP-447).  Commits in transactions are in transactions/transactional_offsets.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.coordinator.group_coordinators import GroupHost
from kafkalite.broker.error_responses import check_repetitions
from kafkalite.broker.future import Future, all_of
from kafkalite.broker.handlers.groups import GroupsNode, error_response, request_group
from kafkalite.broker.security import DELETE, DESCRIBE, GROUP, READ, TOPIC
from kafkalite.broker.served_apis import Response, ServingNode, serves
from kafkalite.broker.stepping import ENTRIES_AT_ONCE, Work
from kafkalite.coordination.groups.group_coordinator import (
    CommittedOffset,
    Decision,
    GroupCoordinator,
    OffsetToCommit,
)
from kafkalite.coordination.groups.offsets.committed_offsets import UNSTABLE
from kafkalite.coordination.image import TopicImage
from kafkalite.errors import (
    KafkaError,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnstableOffsetCommit,
)
from kafkalite.ids import NO_ID
from kafkalite.protocol.schemas.groups import OFFSET_COMMIT, OFFSET_DELETE, OFFSET_FETCH

NO_OFFSET = -1

TopicPartition = tuple[str, int]


class PendingEntries:
    """The response entries of a request; the coordinator completes those in `open`."""

    def __init__(self) -> None:
        self.topics: list[Response] = []
        self.open: list[tuple[Response, TopicPartition]] = []

    def topic(self, **identity: Any) -> list[Response]:
        """Begin the next topic's entry and return its list of partitions."""
        partitions: list[Response] = []
        self.topics.append({**identity, "partitions": partitions})
        return partitions

    def open_partition(
        self,
        partitions: list[Response],
        image: TopicImage | None,
        error: KafkaError | None,
        index: int,
    ) -> TopicImage | None:
        """Add the entry of a partition; return its topic if the coordinator completes the entry.

        There is either an `image` or an `error`; with an unknown partition the entry is complete.
        """
        code = UnknownTopicOrPartition.code if error is None else error.code
        if image is None or error is not None or index not in image.partitions:
            partitions.append({"partition_index": index, "error_code": code})
            return None
        partitions.append({"partition_index": index, "error_code": 0})
        self.open.append((partitions[-1], (image.name, index)))
        return image

    def completion(self) -> Callable[[Response], None]:
        """Return a function that completes the entries opened since the last call.

        The function takes the coordinator's response.
        """
        pending, self.open = self.open, []

        def complete(response: Response) -> None:
            error = response.get("error")
            for entry, partition in pending:
                entry["error_code"] = response["codes"][partition] if error is None else error.code

        return complete


@serves(OFFSET_COMMIT, versions="2-10", at=ServingNode.COORDINATOR, is_cancellable=False)
def offset_commit(
    node: GroupsNode, request: Any, client: ClientContext
) -> Work[Response | Future[Response]]:
    """Commit offsets; each partition succeeds or fails on its own, in slices of the request."""
    entries = PendingEntries()
    commits: list[OffsetToCommit] = []
    decisions: list[Future[None]] = []

    def decide() -> None:
        """Submit the commits gathered so far to the coordinator."""
        nonlocal commits
        submitted = request_group(
            node, client, request.group_id, partial(_commit, request, commits, client.version),
            lambda error: {"codes": {}, "error": error},
        )  # fmt: skip
        decisions.append(submitted.map(entries.completion()))
        commits = []

    queues, ticket = node.groups.commit_queues, object()
    try:
        yield from queues.wait(request.group_id, ticket)
        for topic in request.topics:
            results = entries.topic(**topic_identity(topic))
            image, error = readable_topic(node, client, topic)
            for requested in topic.partitions:
                known = entries.open_partition(results, image, error, requested.partition_index)
                if known is not None:
                    commits.append(offset_to_commit(known, requested))
                    if len(commits) == ENTRIES_AT_ONCE:
                        decide()
                yield
            yield
        if commits or not request.topics:
            decide()
    finally:
        queues.done(request.group_id, ticket)
    if not decisions:
        client.must(READ, GROUP, request.group_id)
        return {"topics": entries.topics}
    return all_of(decisions).map(lambda _: {"topics": entries.topics})


def _commit(
    request: Any,
    commits: Sequence[OffsetToCommit],
    version: int,
    groups: GroupCoordinator,
    token: Any,
    now_ms: int,
    wall_ms: int,
) -> Decision:
    return groups.commit_offsets(request, commits, token, now_ms, wall_ms, version)


def offset_to_commit(image: TopicImage, requested: Any) -> OffsetToCommit:
    """Return the offset that an OffsetCommit or TxnOffsetCommit has for a partition."""
    return OffsetToCommit(
        image.name,
        requested.partition_index,
        requested.committed_offset,
        requested.committed_leader_epoch,
        requested.committed_metadata or "",
        image.topic_id,
    )


def topic_identity(topic: Any) -> Response:
    """Return the topic's name and id as the request gives them."""
    return {"name": getattr(topic, "name", ""), "topic_id": getattr(topic, "topic_id", NO_ID)}


def readable_topic(
    node: GroupsNode, client: ClientContext, topic: Any
) -> tuple[TopicImage | None, KafkaError | None]:
    """Return the topic by its name or id, or the error if the principal may not read it."""
    topic_id = getattr(topic, "topic_id", NO_ID)
    if topic_id != NO_ID:
        image = node.image.topics_by_id.get(topic_id)
        if image is None:
            return None, UnknownTopicId()
    else:
        image = node.image.topics.get(topic.name)
    if not client.may(READ, TOPIC, image.name if image is not None else topic.name):
        return None, TopicAuthorizationFailed()
    return (image, None) if image is not None else (None, UnknownTopicOrPartition())


@serves(OFFSET_FETCH, versions="1-10", at=ServingNode.COORDINATOR)
def offset_fetch(node: GroupsNode, request: Any, client: ClientContext) -> Work[Future[Response]]:
    """Return the committed offsets of groups; -1 where there is none."""
    if client.version < 8:
        require_stable = getattr(request, "require_stable", False)
        single = yield from _fetch_group_offsets(
            node, client, request, 1, require_stable=require_stable
        )
        return single.map(lambda group: _single(group, request, client))
    repetitions = Counter(group.group_id for group in request.groups)
    groups: list[Future[Response]] = []
    for group in request.groups:
        count = repetitions[group.group_id]
        fetched = yield from _fetch_group_offsets(
            node, client, group, count, require_stable=request.require_stable
        )
        groups.append(fetched)
        yield
    return all_of(groups).map(lambda groups: {"groups": groups})


def _single(group: Response, request: Any, client: ClientContext) -> Response:
    code = group["error_code"]
    if code and client.version < 2:
        # Version 1 has an error field in the partitions only.
        topics = [
            {"name": topic.name, "partitions": _no_offsets(topic.partition_indexes, code)}
            for topic in request.topics
        ]
        return {"topics": topics}
    for topic in group["topics"]:
        del topic["topic_id"]
    return {"topics": group["topics"], "error_code": code}


def _fetch_group_offsets(
    node: GroupsNode, client: ClientContext, group: Any, repetitions: int, *, require_stable: bool
) -> Work[Future[Response]]:
    """Return one group's offsets, of the requested topics or of all that may be described."""
    group_id = group.group_id

    def error_of(error: KafkaError) -> Response:
        return {"group_id": group_id, "topics": [], "error_code": error.code}

    try:
        client.must(DESCRIBE, GROUP, group_id)
        check_repetitions(repetitions)
        host = node.groups.host_of(group_id)
        # Versions below 8 have one group and no members.
        member_id, epoch = getattr(group, "member_id", None), getattr(group, "member_epoch", -1)
        host.machine.check_fetch(group_id, member_id, epoch)
        lookup = OffsetLookup(
            node, host, group_id,
            only_committed=group.topics is None, require_stable=require_stable,
        )  # fmt: skip
        if group.topics is None:
            yield from _lookup_all(node, client, lookup)
        else:
            yield from _lookup_requested(node, client, group.topics, lookup)
    except KafkaError as error:
        return Future.of(error_of(error))
    return (
        lookup.result()
        .map(lambda topics: {"group_id": group_id, "topics": topics, "error_code": 0})
        .recover(error_of)
    )


class OffsetLookup:
    """Reads one group's offsets in slices; with `only_committed`, omits partitions without one."""

    def __init__(
        self,
        node: GroupsNode,
        host: GroupHost,
        group_id: str,
        *,
        only_committed: bool,
        require_stable: bool,
    ) -> None:
        self._node = node
        self._host = host
        self._group_id = group_id
        self._only_committed = only_committed
        self._require_stable = require_stable
        self._topics: list[Response] = []
        self._batch: list[tuple[str, Sequence[int], list[Response]]] = []
        self._batch_count = 0
        self._submitted: list[Future[None]] = []

    def partitions(self) -> dict[str, list[int]]:
        """Return the partitions of which the group has offsets, by topic."""
        return self._host.machine.offsets.partitions(self._group_id)

    def topic(self, identity: Response) -> list[Response]:
        """Begin the next topic's entry and return its list of partitions."""
        partitions: list[Response] = []
        self._topics.append({**identity, "partitions": partitions})
        return partitions

    def add(self, name: str, indexes: Sequence[int], results: list[Response]) -> Work[None]:
        """Look up partitions of a topic in slices and append their offsets to `results`."""
        for begin in range(0, len(indexes), ENTRIES_AT_ONCE):
            part = indexes[begin : begin + ENTRIES_AT_ONCE]
            self._batch.append((name, part, results))
            self._batch_count += len(part)
            if self._batch_count >= ENTRIES_AT_ONCE:
                self._submit()
                yield

    def result(self) -> Future[list[Response]]:
        """Return all topics, once the records that their offsets depend on are committed."""
        if self._batch or not self._submitted:
            self._submit()
        topics = self._topics
        return all_of(self._submitted).map(
            lambda _: (
                [topic for topic in topics if topic["partitions"]]
                if self._only_committed
                else topics
            )
        )

    def _submit(self) -> None:
        batch, self._batch, self._batch_count = self._batch, [], 0
        names: dict[str, list[int]] = {}
        for name, indexes, _ in batch:
            names.setdefault(name, []).extend(indexes)
        id_of = partial(_id_of, self._node)

        def add_entries(offsets_by_topic: Mapping[str, Mapping[int, CommittedOffset]]) -> None:
            for name, indexes, results in batch:
                committed = offsets_by_topic.get(name, {})
                for index in indexes:
                    if not self._only_committed or index in committed:
                        results.append(_committed_offset(index, committed.get(index)))

        read = self._host.read(
            lambda groups: groups.fetch_offsets(
                self._group_id, names, id_of, require_stable=self._require_stable
            )
        )
        self._submitted.append(read.map(add_entries))


def _lookup_all(node: GroupsNode, client: ClientContext, lookup: OffsetLookup) -> Work[None]:
    for name, indexes in lookup.partitions().items():
        image = node.image.topics.get(name)
        if client.may(DESCRIBE, TOPIC, name) and (image is not None or client.version < 10):
            topic_id = NO_ID if image is None else image.topic_id
            yield from lookup.add(name, indexes, lookup.topic({"name": name, "topic_id": topic_id}))
        yield


def _lookup_requested(
    node: GroupsNode, client: ClientContext, topics: Sequence[Any], lookup: OffsetLookup
) -> Work[None]:
    requested_topics = []
    counts: Counter[TopicPartition] = Counter()
    for topic in topics:
        name_or_error = _describable(node, client, topic)
        requested_topics.append((name_or_error, topic))
        if not isinstance(name_or_error, KafkaError):
            counts.update(zip(repeat(name_or_error), topic.partition_indexes))
        yield
    check_repetitions(max(counts.values(), default=0))
    for name_or_error, topic in requested_topics:
        results = lookup.topic(topic_identity(topic))
        if isinstance(name_or_error, KafkaError):
            results += _no_offsets(topic.partition_indexes, name_or_error.code)
        else:
            yield from lookup.add(name_or_error, topic.partition_indexes, results)
        yield


def _id_of(node: GroupsNode, name: str) -> bytes:
    image = node.image.topics.get(name)
    return NO_ID if image is None else image.topic_id


def _describable(node: GroupsNode, client: ClientContext, topic: Any) -> str | KafkaError:
    topic_id = getattr(topic, "topic_id", NO_ID)
    if topic_id != NO_ID:
        image = node.image.topics_by_id.get(topic_id)
        if image is None:
            return UnknownTopicId()
        name = image.name
    else:
        name = topic.name
    return name if client.may(DESCRIBE, TOPIC, name) else TopicAuthorizationFailed()


def _committed_offset(index: int, committed: CommittedOffset | None) -> Response:
    if committed is None:
        return _no_offsets([index], 0)[0]
    if committed is UNSTABLE:
        return _no_offsets([index], UnstableOffsetCommit.code)[0]
    return {
        "partition_index": index,
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
    }


def _no_offsets(indexes: Iterable[int], code: int) -> list[Response]:
    return [
        {
            "partition_index": index,
            "committed_offset": NO_OFFSET,
            "committed_leader_epoch": -1,
            "metadata": "",
            "error_code": code,
        }
        for index in indexes
    ]


@serves(OFFSET_DELETE, versions="0", at=ServingNode.COORDINATOR, is_cancellable=False)
def offset_delete(node: GroupsNode, request: Any, client: ClientContext) -> Work[Future[Response]]:
    """Delete a group's committed offsets of partitions, in slices of the request."""
    entries = PendingEntries()
    partitions: list[TopicPartition] = []
    decisions: list[Future[Response | None]] = []

    def decide() -> None:
        """Submit the partitions gathered so far to the coordinator."""
        nonlocal partitions
        complete = entries.completion()

        def respond(response: Response) -> Response | None:
            if "error_code" in response:
                return response
            complete(response)
            return None

        delete = partial(_delete_offsets, request.group_id, partitions)
        submitted = request_group(node, client, request.group_id, delete, error_response, DELETE)
        decisions.append(submitted.map(respond))
        partitions = []

    for topic in request.topics:
        results = entries.topic(name=topic.name)
        image, error = readable_topic(node, client, topic)
        for requested in topic.partitions:
            known = entries.open_partition(results, image, error, requested.partition_index)
            if known is not None:
                partitions.append((known.name, requested.partition_index))
                if len(partitions) == ENTRIES_AT_ONCE:
                    decide()
            yield
        yield
    if partitions or not decisions:
        decide()
    return all_of(decisions).map(
        lambda refusals: next(filter(None, refusals), {"topics": entries.topics})
    )


def _delete_offsets(
    group_id: str,
    partitions: Sequence[TopicPartition],
    groups: GroupCoordinator,
    token: Any,
    now_ms: int,
    _: int,
) -> Decision:
    return groups.delete_offsets(group_id, partitions, token, now_ms)
