"""CommittedOffset offsets: commit, fetch and delete.

OffsetCommit      v2–v10   v10 by topic id
OffsetFetch       v1–v10   v8 for many groups at once, v10 by topic id
OffsetDelete      v0

A handler adds what the coordinator does not know: which topics exist, and authorization.  A large
request is passed to the coordinator ENTRIES_AT_ONCE partitions at a time.

Left out: transactions.  Without open transactions every offset is stable, so `require_stable` has
no effect.
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
from kafkalite.broker.handlers.groups import GroupsNode, ask_group, refusal
from kafkalite.broker.later import Later, all_of
from kafkalite.broker.security import DELETE, DESCRIBE, GROUP, READ, TOPIC
from kafkalite.broker.served_apis import Response, ServingNode, serves
from kafkalite.broker.stepping import ENTRIES_AT_ONCE, Work
from kafkalite.coordination.group_coordinator import (
    Commit,
    CommittedOffset,
    Decision,
    GroupCoordinator,
)
from kafkalite.coordination.image import TopicImage
from kafkalite.errors import (
    KafkaError,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
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

    def topic(self, **named: Any) -> list[Response]:
        """Begin the next topic's entry and return its list of partitions."""
        partitions: list[Response] = []
        self.topics.append({**named, "partitions": partitions})
        return partitions

    def settling(self) -> Callable[[Response], None]:
        """Return a function that completes the entries opened since the last call.

        The function takes the coordinator's response.
        """
        opened, self.open = self.open, []

        def settle(answer: Response) -> None:
            error = answer.get("error")
            for entry, place in opened:
                entry["error_code"] = answer["codes"][place] if error is None else error.code

        return settle


@serves(OFFSET_COMMIT, versions="2-10", at=ServingNode.COORDINATOR, to_the_end=True)
def offset_commit(
    node: GroupsNode, request: Any, client: ClientContext
) -> Work[Response | Later[Response]]:
    """Commit offsets; each partition succeeds or fails on its own, in slices of the request."""
    entries = PendingEntries()
    commits: list[Commit] = []
    decided: list[Later[None]] = []

    def decide() -> None:
        """Submit the commits gathered so far to the coordinator."""
        nonlocal commits
        asked = ask_group(
            node, client, request.group_id, partial(_commit, request, commits, client.version),
            lambda error: {"codes": {}, "error": error},
        )  # fmt: skip
        decided.append(asked.map(entries.settling()))
        commits = []

    turns, turn = node.groups.commit_turns, object()
    try:
        yield from turns.wait(request.group_id, turn)
        for topic in request.topics:
            answers = entries.topic(**_named(topic))
            there, error = _readable(node, client, topic)
            for part in topic.partitions:
                index = part.partition_index
                code = _code(there, error, index)
                answers.append({"partition_index": index, "error_code": code})
                if there is not None and not code:
                    entries.open.append((answers[-1], (there.name, index)))
                    commits.append(
                        Commit(
                            there.name,
                            index,
                            part.committed_offset,
                            part.committed_leader_epoch,
                            part.committed_metadata or "",
                            there.topic_id,
                        )  # fmt: skip
                    )
                    if len(commits) == ENTRIES_AT_ONCE:
                        decide()
                yield
            yield
        if commits or not request.topics:
            decide()
    finally:
        turns.done(request.group_id, turn)
    if not decided:
        client.must(READ, GROUP, request.group_id)
        return {"topics": entries.topics}
    return all_of(decided).map(lambda _: {"topics": entries.topics})


def _commit(
    request: Any,
    commits: Sequence[Commit],
    version: int,
    groups: GroupCoordinator,
    token: Any,
    now_ms: int,
    wall_ms: int,
) -> Decision:
    return groups.commit_offsets(request, commits, token, now_ms, wall_ms, version)


def _code(there: TopicImage | None, error: KafkaError | None, index: int) -> int:
    """Return the error code of a partition before the coordinator is involved, 0 if none."""
    if error is not None:
        return error.code
    assert there is not None, "either a topic or an error"
    return 0 if index in there.partitions else UnknownTopicOrPartition.code


def _named(topic: Any) -> Response:
    """Return the topic's name and id as the request gives them."""
    return {"name": getattr(topic, "name", ""), "topic_id": getattr(topic, "topic_id", NO_ID)}


def _readable(
    node: GroupsNode, client: ClientContext, topic: Any
) -> tuple[TopicImage | None, KafkaError | None]:
    """Return the topic by its name or id, or the error if the principal may not read it."""
    topic_id = getattr(topic, "topic_id", NO_ID)
    if topic_id != NO_ID:
        there = node.image.topics_by_id.get(topic_id)
        if there is None:
            return None, UnknownTopicId()
    else:
        there = node.image.topics.get(topic.name)
    if not client.may(READ, TOPIC, there.name if there is not None else topic.name):
        return None, TopicAuthorizationFailed()
    return (there, None) if there is not None else (None, UnknownTopicOrPartition())


@serves(OFFSET_FETCH, versions="1-10", at=ServingNode.COORDINATOR)
def offset_fetch(node: GroupsNode, request: Any, client: ClientContext) -> Work[Later[Response]]:
    """Return the committed offsets of groups; -1 where there is none."""
    if client.version < 8:
        found = yield from _fetched(node, client, request, 1)
        return found.map(lambda found: _single(found, request, client))
    counts = Counter(group.group_id for group in request.groups)
    groups: list[Later[Response]] = []
    for group in request.groups:
        groups.append((yield from _fetched(node, client, group, counts[group.group_id])))
        yield
    return all_of(groups).map(lambda found: {"groups": found})


def _single(found: Response, request: Any, client: ClientContext) -> Response:
    code = found["error_code"]
    if code and client.version < 2:
        # Version 1 has an error field in the partitions only.
        refused = [
            {"name": topic.name, "partitions": _nowhere(topic.partition_indexes, code)}
            for topic in request.topics
        ]
        return {"topics": refused}
    for topic in found["topics"]:
        del topic["topic_id"]
    return {"topics": found["topics"], "error_code": code}


def _fetched(
    node: GroupsNode, client: ClientContext, group: Any, named: int
) -> Work[Later[Response]]:
    """Return one group's offsets, of the requested topics or of all that may be described."""
    group_id = group.group_id

    def refuse(error: KafkaError) -> Response:
        return {"group_id": group_id, "topics": [], "error_code": error.code}

    try:
        client.must(DESCRIBE, GROUP, group_id)
        check_repetitions(named)
        host = node.groups.host_of(group_id)
        looks = OffsetLookup(node, host, group_id, every=group.topics is None)
        if group.topics is None:
            yield from _look_at_all(node, client, looks)
        else:
            yield from _look_at(node, client, group.topics, looks)
    except KafkaError as error:
        return Later.of(refuse(error))
    return (
        looks.found()
        .map(lambda topics: {"group_id": group_id, "topics": topics, "error_code": 0})
        .recover(refuse)
    )


class OffsetLookup:
    """Reads one group's offsets in slices; with `every`, only those that were committed."""

    def __init__(self, node: GroupsNode, host: GroupHost, group_id: str, *, every: bool) -> None:
        self._node = node
        self._host = host
        self._group_id = group_id
        self._every = every
        self._topics: list[Response] = []
        self._gathered: list[tuple[str, Sequence[int], list[Response]]] = []
        self._gathered_count = 0
        self._looks: list[Later[None]] = []

    def places(self) -> dict[str, list[int]]:
        """Return the partitions of which the group has offsets, by topic."""
        return self._host.machine.offsets.places(self._group_id)

    def topic(self, named: Response) -> list[Response]:
        """Begin the next topic's entry and return its list of partitions."""
        partitions: list[Response] = []
        self._topics.append({**named, "partitions": partitions})
        return partitions

    def add(self, name: str, indexes: Sequence[int], answers: list[Response]) -> Work[None]:
        """Look up partitions of a topic in slices and append their offsets to `answers`."""
        for begin in range(0, len(indexes), ENTRIES_AT_ONCE):
            some = indexes[begin : begin + ENTRIES_AT_ONCE]
            self._gathered.append((name, some, answers))
            self._gathered_count += len(some)
            if self._gathered_count >= ENTRIES_AT_ONCE:
                self._look()
                yield

    def found(self) -> Later[list[Response]]:
        """Return all topics, once the records that their offsets depend on are committed."""
        if self._gathered or not self._looks:
            self._look()
        topics = self._topics
        return all_of(self._looks).map(
            lambda _: [topic for topic in topics if topic["partitions"]] if self._every else topics
        )

    def _look(self) -> None:
        gathered, self._gathered, self._gathered_count = self._gathered, [], 0
        names: dict[str, list[int]] = {}
        for name, indexes, _ in gathered:
            names.setdefault(name, []).extend(indexes)
        id_of = partial(_id_of, self._node)

        def answer(found: Mapping[str, Mapping[int, CommittedOffset]]) -> None:
            for name, indexes, answers in gathered:
                there = found.get(name, {})
                for index in indexes:
                    if not self._every or index in there:
                        answers.append(_one_committed(index, there.get(index)))

        looked = self._host.read(lambda groups: groups.fetch_offsets(self._group_id, names, id_of))
        self._looks.append(looked.map(answer))


def _look_at_all(node: GroupsNode, client: ClientContext, looks: OffsetLookup) -> Work[None]:
    for name, indexes in looks.places().items():
        there = node.image.topics.get(name)
        if client.may(DESCRIBE, TOPIC, name) and (there is not None or client.version < 10):
            topic_id = NO_ID if there is None else there.topic_id
            yield from looks.add(name, indexes, looks.topic({"name": name, "topic_id": topic_id}))
        yield


def _look_at(
    node: GroupsNode, client: ClientContext, topics: Sequence[Any], looks: OffsetLookup
) -> Work[None]:
    wanted = []
    counts: Counter[TopicPartition] = Counter()
    for topic in topics:
        there = _describable(node, client, topic)
        wanted.append((there, topic))
        if not isinstance(there, KafkaError):
            counts.update(zip(repeat(there), topic.partition_indexes))
        yield
    check_repetitions(max(counts.values(), default=0))
    for there, topic in wanted:
        answers = looks.topic(_named(topic))
        if isinstance(there, KafkaError):
            answers += _nowhere(topic.partition_indexes, there.code)
        else:
            yield from looks.add(there, topic.partition_indexes, answers)
        yield


def _id_of(node: GroupsNode, name: str) -> bytes:
    there = node.image.topics.get(name)
    return NO_ID if there is None else there.topic_id


def _describable(node: GroupsNode, client: ClientContext, topic: Any) -> str | KafkaError:
    topic_id = getattr(topic, "topic_id", NO_ID)
    if topic_id != NO_ID:
        there = node.image.topics_by_id.get(topic_id)
        if there is None:
            return UnknownTopicId()
        name = there.name
    else:
        name = topic.name
    return name if client.may(DESCRIBE, TOPIC, name) else TopicAuthorizationFailed()


def _one_committed(index: int, committed: CommittedOffset | None) -> Response:
    if committed is None:
        return _nowhere([index], 0)[0]
    return {
        "partition_index": index,
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
    }


def _nowhere(indexes: Iterable[int], code: int) -> list[Response]:
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


@serves(OFFSET_DELETE, versions="0", at=ServingNode.COORDINATOR, to_the_end=True)
def offset_delete(node: GroupsNode, request: Any, client: ClientContext) -> Work[Later[Response]]:
    """Delete a group's committed offsets of partitions, in slices of the request."""
    entries = PendingEntries()
    places: list[TopicPartition] = []
    decided: list[Later[Response | None]] = []

    def decide() -> None:
        """Submit the partitions gathered so far to the coordinator."""
        nonlocal places
        settle = entries.settling()

        def respond(answer: Response) -> Response | None:
            if "error_code" in answer:
                return answer
            settle(answer)
            return None

        delete = partial(_delete_offsets, request.group_id, places)
        asked = ask_group(node, client, request.group_id, delete, refusal, DELETE)
        decided.append(asked.map(respond))
        places = []

    for topic in request.topics:
        answers = entries.topic(name=topic.name)
        there, error = _readable(node, client, topic)
        for part in topic.partitions:
            index = part.partition_index
            code = _code(there, error, index)
            answers.append({"partition_index": index, "error_code": code})
            if there is not None and not code:
                entries.open.append((answers[-1], (there.name, index)))
                places.append((there.name, index))
                if len(places) == ENTRIES_AT_ONCE:
                    decide()
            yield
        yield
    if places or not decided:
        decide()
    return all_of(decided).map(
        lambda refusals: next(filter(None, refusals), {"topics": entries.topics})
    )


def _delete_offsets(
    group_id: str,
    places: Sequence[TopicPartition],
    groups: GroupCoordinator,
    token: Any,
    now_ms: int,
    _: int,
) -> Decision:
    return groups.delete_offsets(group_id, places, token, now_ms)
