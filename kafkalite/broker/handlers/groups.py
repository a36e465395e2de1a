"""Groups: coordinator lookup, membership, description and deletion.

FindCoordinator   v0–v6    v4 looks up many keys at once
JoinGroup         v0–v9    v4 requires a member id (KIP-394), v5 static members (KIP-345)
SyncGroup         v0–v5    v5 repeats the protocol type and name
Heartbeat         v0–v4
LeaveGroup        v0–v5    v3 removes many members at once
DescribeGroups    v0–v6    v6 has an error for a group that does not exist
ListGroups        v0–v5    v4 filters by state, v5 by type
DeleteGroups      v0–v3    v3 has error messages

Group state and rebalances belong to the group coordinator (coordination/).  A handler adds what the
coordinator does not know: which topics exist, authorization, and the differences between versions.
A node that does not coordinate the group responds with NOT_COORDINATOR to all of these.

Committed offsets are in offset_commits.py, groups of the consumer protocol in consumer_groups.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.controller.local_controller import LocalController
from kafkalite.broker.coordinator.group_coordinators import GroupCoordinators, GroupDecision
from kafkalite.broker.coordinator.share_coordinators import ShareCoordinators
from kafkalite.broker.coordinator.share_progress import ShareProgressFinder
from kafkalite.broker.error_responses import check_repetitions, error_fields
from kafkalite.broker.future import Future, all_of
from kafkalite.broker.handler_node import HandlerNode
from kafkalite.broker.replica.replica_manager import ReplicaManager
from kafkalite.broker.security import (
    CLUSTER,
    CLUSTER_ACTION,
    CLUSTER_NAME,
    DELETE,
    DESCRIBE,
    GROUP,
    READ,
    TRANSACTIONAL_ID,
    AclOperation,
)
from kafkalite.broker.served_apis import Response, ServingNode, serves
from kafkalite.broker.stepping import ENTRIES_AT_ONCE, Work, in_steps
from kafkalite.coordination.groups.group_coordinator import (
    Decision,
    GroupClient,
    GroupCoordinator,
)
from kafkalite.coordination.image import SUPERVISOR_ID
from kafkalite.coordination.placement import (
    COORDINATOR_TOPICS,
    CoordinatorType,
    coordinator_of,
)
from kafkalite.coordination.share.state_requests import (
    Outcome,
    StateDeletion,
)
from kafkalite.errors import (
    ClusterAuthorizationFailed,
    CoordinatorNotAvailable,
    GroupAuthorizationFailed,
    InconsistentGroupProtocol,
    InvalidRequest,
    KafkaError,
    TransactionalIdAuthorizationFailed,
)
from kafkalite.protocol.schemas.groups import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    SYNC_GROUP,
)
from kafkalite.protocol.schemas.share_records import SharePartitionKey

COORDINATORS_SINCE = 4
"""The FindCoordinator version that names several keys (KIP-699)."""
SHARE_COORDINATOR_SINCE = 6
"""The FindCoordinator version that knows share coordinators (KIP-932)."""


class GroupsNode(HandlerNode, Protocol):
    """The components that group requests use."""

    groups: GroupCoordinators
    share_coordinators: ShareCoordinators
    share_progress: ShareProgressFinder
    replicas: ReplicaManager

    @property
    def local_controller(self) -> LocalController:
        """The controller on this node."""


# -- FindCoordinator -----------------------------------------------------------------------------


def refuse_coordinators(request: Any, version: int, error: KafkaError) -> Response:
    """Return the response if the controller, which knows the coordinators, is unavailable."""
    fields = _no_coordinator(CoordinatorNotAvailable(str(error)))
    if version < COORDINATORS_SINCE:
        return fields
    return {"coordinators": [{"key": key, **fields} for key in request.coordinator_keys]}


@serves(FIND_COORDINATOR, versions="0-6", at=ServingNode.CONTROLLER, refuse=refuse_coordinators)
def find_coordinator(
    node: GroupsNode, request: Any, client: ClientContext
) -> Work[Response | Future[Response]]:
    """Return the coordinators of these keys; create the internal topic if it does not exist.

    The response waits until its leader, this node, can serve what the client sends next.
    """
    keys = request.coordinator_keys if client.version >= COORDINATORS_SINCE else [request.key]
    key_type = request.key_type if client.version >= 1 else CoordinatorType.GROUP
    errors: dict[str, KafkaError] = {}
    for key in keys:
        error = _coordinator_error(client, key_type, key)
        if error is not None:
            errors[key] = error
        yield

    def respond(failure: KafkaError | None = None) -> Work[Response]:
        coordinators: list[Response] = []
        for key in keys:
            error = errors.get(key, failure)
            coordinators.append({"key": key, **_coordinator(node, client, key_type, key, error)})
            yield
        if client.version >= COORDINATORS_SINCE:
            return {"coordinators": coordinators}
        del coordinators[0]["key"]
        return coordinators[0]

    if all(key in errors for key in keys):
        return (yield from respond())
    topic = COORDINATOR_TOPICS[CoordinatorType(key_type)]
    known = node.image.topics.get(topic)
    if known is not None and node.replicas.led_count_of(topic) == len(known.partitions):
        return (yield from respond())
    response: Future[Response] = Future()

    def created(_: None, error: KafkaError | None) -> None:
        failure = CoordinatorNotAvailable(str(error)) if error is not None else None
        response.follow(in_steps(node.reactor, respond(failure)))

    node.local_controller.open_internal_topic(topic).then(created)
    return response


def _coordinator_error(client: ClientContext, key_type: int, key: str) -> KafkaError | None:
    if key_type == CoordinatorType.TRANSACTION:
        may_describe = client.may(DESCRIBE, TRANSACTIONAL_ID, key)
        return None if may_describe else TransactionalIdAuthorizationFailed()
    if key_type == CoordinatorType.SHARE:
        return _share_coordinator_error(client, key)
    if key_type != CoordinatorType.GROUP:
        return InvalidRequest(f"Unsupported coordinator type {key_type}.")
    return None if client.may(DESCRIBE, GROUP, key) else GroupAuthorizationFailed()


def _share_coordinator_error(client: ClientContext, key: str) -> KafkaError | None:
    if client.version < SHARE_COORDINATOR_SINCE:
        return InvalidRequest(f"Version {client.version} does not know share coordinators.")
    if not client.may(CLUSTER_ACTION, CLUSTER, CLUSTER_NAME):
        return ClusterAuthorizationFailed()
    if SharePartitionKey.of_text(key) is None:
        return InvalidRequest(f"{key!r} is not of the form group:topicId:partition.")
    return None


def _coordinator(
    node: GroupsNode, client: ClientContext, key_type: int, key: str, error: KafkaError | None
) -> Response:
    if error is not None:
        return _no_coordinator(error)
    node_id = coordinator_of(node.image, CoordinatorType(key_type), key)
    if node_id != SUPERVISOR_ID:  # it is about to lead the partition, and hosts the coordinators
        return _no_coordinator(CoordinatorNotAvailable())
    host, port = node.metadata.advertised(client, node.image.nodes[node_id])
    return {"node_id": node_id, "host": host, "port": port, "error_code": 0, "error_message": ""}


def _no_coordinator(error: KafkaError) -> Response:
    return {"node_id": -1, "host": "", "port": -1, **error_fields(error)}


# -- membership ----------------------------------------------------------------------------------


def request_group(
    node: GroupsNode,
    client: ClientContext,
    group_id: str,
    decide: GroupDecision,
    refuse: Callable[[KafkaError], Response],
    operation: AclOperation = READ,
) -> Future[Response]:
    """Return the coordinator's response, or the error response if it is not authorized."""
    try:
        client.must(operation, GROUP, group_id)
        return node.groups.host_of(group_id).request(decide).recover(refuse)
    except KafkaError as error:
        return Future.of(refuse(error))


def error_response(error: KafkaError) -> Response:
    return error_fields(error, messages=False)


@serves(JOIN_GROUP, versions="0-9", at=ServingNode.COORDINATOR)
def join_group(node: GroupsNode, request: Any, client: ClientContext) -> Future[Response]:
    """Join a group or its next generation; the response is sent when the generation is complete."""
    member = GroupClient(client.client_id or "", f"/{client.peer[0]}")
    return request_group(
        node,
        client,
        request.group_id,
        lambda groups, token, now_ms, wall_ms: groups.join(
            request.group_id, request, member, client.version, token, now_ms, wall_ms
        ),
        lambda error: {**error_response(error), "member_id": request.member_id},
    ).map(lambda response: {"protocol_name": None if client.version >= 7 else "", **response})


@serves(SYNC_GROUP, versions="0-5", at=ServingNode.COORDINATOR)
def sync_group(node: GroupsNode, request: Any, client: ClientContext) -> Future[Response]:
    """Take the assignments from the group leader; return the member's own assignment."""
    if client.version >= 5 and None in (request.protocol_type, request.protocol_name):
        raise InconsistentGroupProtocol()
    return request_group(
        node,
        client,
        request.group_id,
        lambda groups, token, now_ms, wall_ms: groups.sync(
            request, client.version, token, now_ms, wall_ms
        ),
        error_response,
    )


@serves(HEARTBEAT, versions="0-4", at=ServingNode.COORDINATOR)
def heartbeat(node: GroupsNode, request: Any, client: ClientContext) -> Future[Response]:
    """Keep the member's session alive, and report a rebalance."""
    return request_group(
        node,
        client,
        request.group_id,
        lambda groups, token, now_ms, _: groups.heartbeat(request, token, now_ms),
        error_response,
    )


@serves(LEAVE_GROUP, versions="0-5", at=ServingNode.COORDINATOR, is_cancellable=False)
def leave_group(node: GroupsNode, request: Any, client: ClientContext) -> Work[Future[Response]]:
    """Remove members from a group, in slices."""
    is_single = client.version < 3
    members = (
        [(request.member_id, None, None)]
        if is_single
        else [(each.member_id, each.group_instance_id, each.reason) for each in request.members]
    )
    responses: list[Future[Response]] = []
    for begin in range(0, len(members) or 1, ENTRIES_AT_ONCE):
        batch = members[begin : begin + ENTRIES_AT_ONCE]
        decide = partial(_leave, request.group_id, batch)
        responses.append(request_group(node, client, request.group_id, decide, error_response))
        yield
    merged = all_of(responses).map(_merge_left)
    return merged.map(_merge_single) if is_single else merged


def _leave(
    group_id: str,
    members: Sequence[tuple[str, str | None, str | None]],
    groups: GroupCoordinator,
    token: Any,
    now_ms: int,
    wall_ms: int,
) -> Decision:
    return groups.leave(group_id, members, token, now_ms, wall_ms)


def _merge_left(responses: Sequence[Response]) -> Response:
    """Merge the responses to the slices of a request; an error of one is the request's."""
    for response in responses:
        if response["error_code"]:
            return response
    members = [member for response in responses for member in response["members"]]
    return {"error_code": 0, "members": members}


def _merge_single(response: Response) -> Response:
    # There was only one member; its error is the request's.
    code = response["error_code"] or next(
        (member["error_code"] for member in response.get("members", ())), 0
    )
    return {"error_code": code}


# -- describing, listing and deleting groups -----------------------------------------------------


@serves(DESCRIBE_GROUPS, versions="0-6", at=ServingNode.COORDINATOR)
def describe_groups(
    node: GroupsNode, request: Any, client: ClientContext
) -> Work[Future[Response]]:
    """Return the state, protocol and members of groups."""
    counts = Counter(request.groups)
    described: list[Future[Response]] = []
    for group_id in request.groups:
        described.append(_describe_group(node, request, client, group_id, counts[group_id]))
        yield
    return all_of(described).map(lambda groups: {"groups": groups})


def _describe_group(
    node: GroupsNode, request: Any, client: ClientContext, group_id: str, repetitions: int
) -> Future[Response]:
    def refuse(error: KafkaError) -> Response:
        return {"group_id": group_id, **error_fields(error)}

    def respond(response: Response) -> Response:
        if request.include_authorized_operations:
            response["authorized_operations"] = client.allowed_bits(GROUP, group_id)
        return response

    try:
        client.must(DESCRIBE, GROUP, group_id)
        check_repetitions(repetitions)
        host = node.groups.host_of(group_id)
        found = host.read(lambda groups: groups.describe(group_id, client.version))
    except KafkaError as error:
        return Future.of(refuse(error))
    return found.map(respond).recover(refuse)


@serves(LIST_GROUPS, versions="0-5", at=ServingNode.COORDINATOR)
def list_groups(node: GroupsNode, request: Any, client: ClientContext) -> Future[Response]:
    """Return the groups coordinated here that the principal may describe."""
    states = getattr(request, "states_filter", ())
    types = getattr(request, "types_filter", ())
    everything = client.may(DESCRIBE, CLUSTER, CLUSTER_NAME)

    def respond(found: Sequence[Sequence[Response]]) -> Response:
        return {
            # Partitions that are loading or unreadable may have more groups.
            "error_code": node.groups.error_code,
            "groups": [
                group
                for host_groups in found
                for group in host_groups
                if everything or client.may(DESCRIBE, GROUP, group["group_id"])
            ],
        }

    reads = [host.read(lambda groups: groups.list(states, types)) for host in node.groups]
    return all_of(reads).map(respond)


@serves(DELETE_GROUPS, versions="0-3", at=ServingNode.COORDINATOR)
def delete_groups(node: GroupsNode, request: Any, client: ClientContext) -> Work[Future[Response]]:
    """Delete empty groups and their offsets."""
    deleted: list[Future[Response]] = []
    for group_id in dict.fromkeys(request.groups_names):
        deleted.append(_delete_group(node, client, group_id))
        yield
    return all_of(deleted).map(lambda results: {"results": results})


def _delete_group(node: GroupsNode, client: ClientContext, group_id: str) -> Future[Response]:
    """Delete a group; of a share group, first the states of its partitions.

    The group records first that it has no initialized partitions, so that a member that joins
    meanwhile has them initialized again.
    """
    topics: set[str] = set()
    if client.may(DELETE, GROUP, group_id):
        with suppress(KafkaError):
            host = node.groups.host_of(group_id)
            topics = host.machine.topics_with_share_states(group_id)
    if not topics:
        return _delete_records(node, client, group_id)
    deleted: Future[Response] = Future()

    def refuse(error: KafkaError) -> None:
        deleted.resolve({"group_id": group_id, **error_fields(error, messages=False)})

    def begun(_: Response | None, error: KafkaError | None) -> None:
        if error is not None:
            refuse(error)
            return
        try:
            keys = node.share_coordinators.keys_of(group_id)
        except KafkaError as raised:
            refuse(raised)
            return
        node.share_coordinators.outcomes([*map(StateDeletion, keys)]).then(states_deleted)

    def states_deleted(outcomes: list[Outcome] | None, _: KafkaError | None) -> None:
        failed = [each for each in outcomes or () if isinstance(each, KafkaError)]
        if failed:
            refuse(failed[0])
        else:
            deleted.follow(_delete_records(node, client, group_id))

    host.request(
        lambda groups, token, now_ms, wall_ms: groups.begin_share_deletion(
            group_id, topics, token, now_ms, wall_ms
        )
    ).then(begun)
    return deleted


def _delete_records(node: GroupsNode, client: ClientContext, group_id: str) -> Future[Response]:
    def respond(response: Response) -> Response:
        error = response[group_id]
        return {"group_id": group_id, **(error_fields(error) if error is not None else {})}

    return request_group(
        node,
        client,
        group_id,
        lambda groups, token, now_ms, _: groups.delete_groups([group_id], token, now_ms),
        lambda error: {group_id: error},
        DELETE,
    ).map(respond)
