"""Groups: who coordinates them, who is in them, and how far they have read.

FindCoordinator   v0–v6    v4 asks for many keys at once
JoinGroup         v0–v9    v4 wants a member id first (KIP-394), v5 static members (KIP-345)
SyncGroup         v0–v5    v5 says the protocol again
Heartbeat         v0–v4
LeaveGroup        v0–v5    v3 takes many members at once
OffsetCommit      v2–v10   v10 by topic id
OffsetFetch       v1–v10   v8 for many groups at once, v10 by topic id
OffsetDelete      v0
DescribeGroups    v0–v6    v6 has an error for a group that is not there
ListGroups        v0–v5    v4 by state, v5 by type
DeleteGroups      v0–v3    v3 says why not

What a group is and when it rebalances is the group coordinator's (coordination/).  A handler sees
to what the coordinator cannot know: which topics there are, who may do what, and how each version
words it.  Asked of a node that does not coordinate the group, all of these answer NOT_COORDINATOR.

Left out: the coordinators of transactions and of share groups; the newer protocols' groups.  With
no open transactions every offset is stable, so `require_stable` asks for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kafkalite.broker.groups import Decide
from kafkalite.broker.handlers import At, Caller, Response, check_named, fault_fields, serves
from kafkalite.broker.later import Later, all_of
from kafkalite.broker.security import (
    CLUSTER,
    CLUSTER_NAME,
    DELETE,
    DESCRIBE,
    GROUP,
    READ,
    TOPIC,
    Operation,
)
from kafkalite.broker.stepping import in_steps
from kafkalite.config.broker import OFFSETS_TOPIC_NUM_PARTITIONS, OFFSETS_TOPIC_SEGMENT_BYTES
from kafkalite.config.topic import RETENTION_BYTES, RETENTION_MS, SEGMENT_BYTES
from kafkalite.coordination.group_coordinator import Asker, Commit, Committed
from kafkalite.coordination.image import SUPERVISOR_ID, TopicImage
from kafkalite.coordination.topic_names import CONSUMER_OFFSETS
from kafkalite.errors import (
    CoordinatorNotAvailable,
    GroupAuthorizationFailed,
    InconsistentGroupProtocol,
    InvalidRequest,
    KafkaError,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from kafkalite.ids import NO_ID, new_id
from kafkalite.protocol.schemas.groups import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    SYNC_GROUP,
)

if TYPE_CHECKING:
    from kafkalite.broker.node import Node

GROUP_KEY, TRANSACTION_KEY, SHARE_KEY = 0, 1, 2
NO_OFFSET = -1

Place = tuple[str, int]


# -- FindCoordinator -----------------------------------------------------------------------------


@serves(FIND_COORDINATOR, versions="0-6", at=At.CONTROLLER)
def find_coordinator(node: Node, request: Any, caller: Caller) -> Response | Later[Response]:
    """Which node coordinates these groups: node 0, once there is a topic to keep them in."""
    keys = request.coordinator_keys if caller.version >= 4 else [request.key]
    key_type = request.key_type if caller.version >= 1 else GROUP_KEY
    faults = {key: fault for key in keys if (fault := _no_coordinator(caller, key_type, key))}

    def respond(fault: KafkaError | None = None) -> Response | Later[Response]:
        found: list[Response] = []
        answers = (
            {"key": key, **_coordinator(node, caller, faults.get(key, fault))} for key in keys
        )
        return in_steps(node, map(found.append, answers), lambda: told(found))

    def told(found: list[Response]) -> Response:
        if caller.version >= 4:
            return {"coordinators": found}
        del found[0]["key"]
        return found[0]

    if all(key in faults for key in keys) or CONSUMER_OFFSETS in node.image.topics:
        return respond()
    answer: Later[Response] = Later()

    def made(_: None, fault: KafkaError | None) -> None:
        answer.follow(respond(fault and CoordinatorNotAvailable(str(fault))))

    _make_topic(node).then(made)
    return answer


def _no_coordinator(caller: Caller, key_type: int, key: str) -> KafkaError | None:
    if key_type == TRANSACTION_KEY:
        # The one true error that ends producers of all clients at once.
        return TransactionalIdAuthorizationFailed("Transactions are not served.")
    if key_type == SHARE_KEY:
        return UnsupportedVersion("Share groups are not served.")
    if key_type != GROUP_KEY:
        return InvalidRequest(f"There is no coordinator of type {key_type}.")
    return None if caller.may(DESCRIBE, GROUP, key) else GroupAuthorizationFailed()


def _coordinator(node: Node, caller: Caller, fault: KafkaError | None) -> Response:
    if fault is not None:
        return {"node_id": -1, "host": "", "port": -1, **fault_fields(fault)}
    there = node.image.nodes[SUPERVISOR_ID]
    host, port = node.advertised(caller, there)
    return {"node_id": there.node_id, "host": host, "port": port, "error_code": 0,
            "error_message": ""}  # fmt: skip


def _make_topic(node: Node) -> Later[None]:
    config = {
        # What is to be kept the coordinator says (partition_journal.py), and never the time.
        RETENTION_MS.name: "-1",
        RETENTION_BYTES.name: "-1",
        SEGMENT_BYTES.name: str(node.settings[OFFSETS_TOPIC_SEGMENT_BYTES]),
    }
    count = node.settings[OFFSETS_TOPIC_NUM_PARTITIONS]
    topic_id = new_id()
    return node.here.carry_out(
        lambda controller: controller.create_internal_topic(
            CONSUMER_OFFSETS, topic_id, count, config
        )
    )


# -- membership ----------------------------------------------------------------------------------


def _asked(
    node: Node,
    caller: Caller,
    group_id: str,
    decide: Decide,
    refuse: Callable[[KafkaError], Response],
    operation: Operation = READ,
) -> Later[Response]:
    """The coordinator's answer to who may do this to the group, or the refusal in the API's
    shape."""
    try:
        caller.must(operation, GROUP, group_id)
        return node.groups.ask(group_id, decide).recover(refuse)
    except KafkaError as fault:
        return Later.of(refuse(fault))


def _refused(fault: KafkaError) -> Response:
    return fault_fields(fault, messages=False)


@serves(JOIN_GROUP, versions="0-9", at=At.COORDINATOR)
def join_group(node: Node, request: Any, caller: Caller) -> Later[Response]:
    """Come into a group, or into its next generation; answered when that is complete."""
    asker = Asker(caller.client_id or "", f"/{caller.peer[0]}")
    return _asked(
        node,
        caller,
        request.group_id,
        lambda groups, token, now_ms, wall_ms: groups.join(
            request.group_id, request, asker, caller.version, token, now_ms, wall_ms
        ),
        lambda fault: {**_refused(fault), "member_id": request.member_id},
    ).map(lambda answer: {"protocol_name": None if caller.version >= 7 else "", **answer})


@serves(SYNC_GROUP, versions="0-5", at=At.COORDINATOR)
def sync_group(node: Node, request: Any, caller: Caller) -> Later[Response]:
    """Give, as the leader, or get what each member is to read."""
    if caller.version >= 5 and None in (request.protocol_type, request.protocol_name):
        raise InconsistentGroupProtocol()
    return _asked(
        node,
        caller,
        request.group_id,
        lambda groups, token, now_ms, wall_ms: groups.sync(
            request, caller.version, token, now_ms, wall_ms
        ),
        _refused,
    )


@serves(HEARTBEAT, versions="0-4", at=At.COORDINATOR)
def heartbeat(node: Node, request: Any, caller: Caller) -> Later[Response]:
    """Stay in the group, and hear whether it rebalances."""
    return _asked(
        node,
        caller,
        request.group_id,
        lambda groups, token, now_ms, _: groups.heartbeat(request, token, now_ms),
        _refused,
    )


@serves(LEAVE_GROUP, versions="0-5", at=At.COORDINATOR)
def leave_group(node: Node, request: Any, caller: Caller) -> Later[Response]:
    """Go, or have others go."""
    alone = caller.version < 3
    members = (
        [(request.member_id, None, None)]
        if alone
        else [(each.member_id, each.group_instance_id, each.reason) for each in request.members]
    )
    answer = _asked(
        node,
        caller,
        request.group_id,
        lambda groups, token, now_ms, wall_ms: groups.leave(
            request.group_id, members, token, now_ms, wall_ms
        ),
        _refused,
    )
    return answer.map(_folded) if alone else answer


def _folded(response: Response) -> Response:
    # There was one member only, whose fault is the request's.
    code = response["error_code"] or next(
        (member["error_code"] for member in response.get("members", ())), 0
    )
    return {"error_code": code}


# -- offsets -------------------------------------------------------------------------------------


class Entries:
    """The partitions of a request, answered one by one: here where it can be told at once, and
    the others by the coordinator."""

    def __init__(self) -> None:
        self.topics: list[Response] = []
        self.open: list[tuple[Response, Place]] = []

    def topic(self, **named: Any) -> list[Response]:
        """Begin the next topic's answer; its partitions go into the list."""
        partitions: list[Response] = []
        self.topics.append({**named, "partitions": partitions})
        return partitions

    def settle(self, codes: Mapping[Place, int], fault: KafkaError | None = None) -> None:
        """What the coordinator says of those left open."""
        for entry, place in self.open:
            entry["error_code"] = codes[place] if fault is None else fault.code


@serves(OFFSET_COMMIT, versions="2-10", at=At.COORDINATOR)
def offset_commit(node: Node, request: Any, caller: Caller) -> Response | Later[Response]:
    """Note how far a group has read."""
    entries = Entries()
    commits: list[Commit] = []
    for topic in request.topics:
        answers = entries.topic(**_named(topic))
        there, fault = _readable(node, caller, topic)
        for part in topic.partitions:
            index = part.partition_index
            code = _code(there, fault, index)
            answers.append({"partition_index": index, "error_code": code})
            if there is None or code:
                continue
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

    def respond(answer: Response) -> Response:
        entries.settle(answer["codes"], answer.get("fault"))
        return {"topics": entries.topics}

    if request.topics and not commits:
        caller.must(READ, GROUP, request.group_id)
        return {"topics": entries.topics}
    return _asked(
        node,
        caller,
        request.group_id,
        lambda groups, token, now_ms, wall_ms: groups.commit_offsets(
            request, commits, token, now_ms, wall_ms, caller.version
        ),
        lambda fault: {"codes": {}, "fault": fault},
    ).map(respond)


def _code(there: TopicImage | None, fault: KafkaError | None, index: int) -> int:
    """What is wrong with a partition of a topic, before the coordinator is asked."""
    if fault is not None:
        return fault.code
    assert there is not None, "a topic that is there, or the fault"
    return 0 if index in there.partitions else UnknownTopicOrPartition.code


def _named(topic: Any) -> Response:
    """A topic as its request names it: by the one or by the other."""
    return {"name": getattr(topic, "name", ""), "topic_id": getattr(topic, "topic_id", NO_ID)}


def _readable(
    node: Node, caller: Caller, topic: Any
) -> tuple[TopicImage | None, KafkaError | None]:
    """The topic that is meant, by its name or its id, or why this caller may not read it."""
    topic_id = getattr(topic, "topic_id", NO_ID)
    if topic_id != NO_ID:
        there = node.image.topics_by_id.get(topic_id)
        if there is None:
            return None, UnknownTopicId()
    else:
        there = node.image.topics.get(topic.name)
    if not caller.may(READ, TOPIC, there.name if there is not None else topic.name):
        return None, TopicAuthorizationFailed()
    return (there, None) if there is not None else (None, UnknownTopicOrPartition())


@serves(OFFSET_FETCH, versions="1-10", at=At.COORDINATOR)
def offset_fetch(node: Node, request: Any, caller: Caller) -> Response | Later[Response]:
    """How far groups have read; -1 where nobody has said so."""
    if caller.version >= 8:
        counts = Counter(group.group_id for group in request.groups)
        groups: list[Later[Response]] = []
        answers = (_fetched(node, caller, each, counts[each.group_id]) for each in request.groups)
        return in_steps(
            node,
            map(groups.append, answers),
            lambda: all_of(groups).map(lambda found: {"groups": found}),
        )
    return _fetched(node, caller, request, 1).map(lambda found: _single(found, request, caller))


def _single(found: Response, request: Any, caller: Caller) -> Response:
    code = found["error_code"]
    if code and caller.version < 2:
        # There is no other place for it.
        refused = [
            {"name": topic.name, "partitions": _nowhere(topic.partition_indexes, code)}
            for topic in request.topics
        ]
        return {"topics": refused}
    for topic in found["topics"]:
        del topic["topic_id"]
    return {"topics": found["topics"], "error_code": code}


def _fetched(node: Node, caller: Caller, group: Any, named: int) -> Later[Response]:
    """One group's offsets: of the topics asked for, or of all that the caller may know of."""
    group_id = group.group_id
    wanted = [(_describable(node, caller, topic), topic) for topic in group.topics or ()]
    names: dict[str, list[int]] = {}
    for there, topic in wanted:
        if not isinstance(there, KafkaError):
            names.setdefault(there, []).extend(topic.partition_indexes)

    def respond(found: Mapping[str, Mapping[int, Committed]]) -> Response:
        if group.topics is None:
            topics = _all_committed(node, caller, found)
        else:
            topics = [_wanted_committed(there, topic, found) for there, topic in wanted]
        return {"group_id": group_id, "topics": topics, "error_code": 0}

    def refuse(fault: KafkaError) -> Response:
        return {"group_id": group_id, "topics": [], "error_code": fault.code}

    try:
        caller.must(DESCRIBE, GROUP, group_id)
        places = ((name, index) for name, indexes in names.items() for index in indexes)
        check_named(max([named, *Counter(places).values()]))
        look = None if group.topics is None else names
        found = node.groups.look(
            group_id, lambda groups: groups.fetch_offsets(group_id, look, partial(_id_of, node))
        )
    except KafkaError as fault:
        return Later.of(refuse(fault))
    return found.map(respond).recover(refuse)


def _id_of(node: Node, name: str) -> bytes:
    there = node.image.topics.get(name)
    return NO_ID if there is None else there.topic_id


def _describable(node: Node, caller: Caller, topic: Any) -> str | KafkaError:
    topic_id = getattr(topic, "topic_id", NO_ID)
    if topic_id != NO_ID:
        there = node.image.topics_by_id.get(topic_id)
        if there is None:
            return UnknownTopicId()
        name = there.name
    else:
        name = topic.name
    return name if caller.may(DESCRIBE, TOPIC, name) else TopicAuthorizationFailed()


def _all_committed(
    node: Node, caller: Caller, found: Mapping[str, Mapping[int, Committed]]
) -> list[Response]:
    answers = []
    for name, partitions in found.items():
        there = node.image.topics.get(name)
        if not caller.may(DESCRIBE, TOPIC, name) or (caller.version >= 10 and there is None):
            continue
        answers.append(
            {
                "name": name,
                "topic_id": there.topic_id if there is not None else NO_ID,
                "partitions": [_one_committed(index, at) for index, at in partitions.items()],
            }
        )
    return answers


def _wanted_committed(
    there: str | KafkaError, topic: Any, found: Mapping[str, Mapping[int, Committed]]
) -> Response:
    if isinstance(there, KafkaError):
        return {**_named(topic), "partitions": _nowhere(topic.partition_indexes, there.code)}
    partitions = found.get(there, {})
    answers = [_one_committed(index, partitions.get(index)) for index in topic.partition_indexes]
    return {**_named(topic), "partitions": answers}


def _one_committed(index: int, committed: Committed | None) -> Response:
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


@serves(OFFSET_DELETE, versions="0", at=At.COORDINATOR)
def offset_delete(node: Node, request: Any, caller: Caller) -> Later[Response]:
    """Forget how far a group has read some partitions."""
    entries = Entries()
    places: list[Place] = []
    for topic in request.topics:
        answers = entries.topic(name=topic.name)
        there, fault = _readable(node, caller, topic)
        for part in topic.partitions:
            index = part.partition_index
            code = _code(there, fault, index)
            answers.append({"partition_index": index, "error_code": code})
            if there is not None and not code:
                entries.open.append((answers[-1], (there.name, index)))
                places.append((there.name, index))

    def respond(answer: Response) -> Response:
        if "error_code" in answer:
            return answer
        entries.settle(answer["codes"])
        return {"topics": entries.topics}

    return _asked(
        node,
        caller,
        request.group_id,
        lambda groups, token, now_ms, _: groups.delete_offsets(
            request.group_id, places, token, now_ms
        ),
        _refused,
        DELETE,
    ).map(respond)


# -- seeing and deleting groups ------------------------------------------------------------------


@serves(DESCRIBE_GROUPS, versions="0-6", at=At.COORDINATOR)
def describe_groups(node: Node, request: Any, caller: Caller) -> Response | Later[Response]:
    """State, protocol and members of groups."""
    counts = Counter(request.groups)
    described: list[Later[Response]] = []
    answers = (_described(node, request, caller, each, counts[each]) for each in request.groups)
    return in_steps(
        node,
        map(described.append, answers),
        lambda: all_of(described).map(lambda groups: {"groups": groups}),
    )


def _described(
    node: Node, request: Any, caller: Caller, group_id: str, named: int
) -> Later[Response]:
    def refuse(fault: KafkaError) -> Response:
        return {"group_id": group_id, **fault_fields(fault)}

    def respond(answer: Response) -> Response:
        if request.include_authorized_operations:
            answer["authorized_operations"] = caller.allowed_bits(GROUP, group_id)
        return answer

    try:
        caller.must(DESCRIBE, GROUP, group_id)
        check_named(named)
        found = node.groups.look(group_id, lambda groups: groups.describe(group_id, caller.version))
    except KafkaError as fault:
        return Later.of(refuse(fault))
    return found.map(respond).recover(refuse)


@serves(LIST_GROUPS, versions="0-5", at=At.COORDINATOR)
def list_groups(node: Node, request: Any, caller: Caller) -> Later[Response]:
    """The groups coordinated here that the caller may know of."""
    states = getattr(request, "states_filter", ())
    types = getattr(request, "types_filter", ())
    everything = caller.may(DESCRIBE, CLUSTER, CLUSTER_NAME)

    def respond(found: Sequence[Sequence[Response]]) -> Response:
        return {
            # Of those that cannot be read it is not known which groups there are.
            "error_code": node.groups.lacking,
            "groups": [
                group
                for of_one in found
                for group in of_one
                if everything or caller.may(DESCRIBE, GROUP, group["group_id"])
            ]
        }

    looked = [host.look(lambda groups: groups.list(states, types)) for host in node.groups]
    return all_of(looked).map(respond)


@serves(DELETE_GROUPS, versions="0-3", at=At.COORDINATOR)
def delete_groups(node: Node, request: Any, caller: Caller) -> Response | Later[Response]:
    """Delete groups that nobody is in, and their offsets."""
    deleted: list[Later[Response]] = []
    answers = (_deleted(node, caller, each) for each in dict.fromkeys(request.groups_names))
    return in_steps(
        node,
        map(deleted.append, answers),
        lambda: all_of(deleted).map(lambda results: {"results": results}),
    )


def _deleted(node: Node, caller: Caller, group_id: str) -> Later[Response]:
    def respond(answer: Response) -> Response:
        fault = answer[group_id]
        return {"group_id": group_id, **(fault_fields(fault) if fault is not None else {})}

    return _asked(
        node,
        caller,
        group_id,
        lambda groups, token, now_ms, _: groups.delete_groups([group_id], token, now_ms),
        lambda fault: {group_id: fault},
        DELETE,
    ).map(respond)
