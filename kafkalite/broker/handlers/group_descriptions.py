"""Descriptions of consumer groups and share groups: authorization, and an error for each group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.error_responses import check_repetitions, error_fields
from kafkalite.broker.future import Future, all_of
from kafkalite.broker.handlers.groups import GroupsNode
from kafkalite.broker.security import DESCRIBE, GROUP, TOPIC
from kafkalite.broker.served_apis import Response
from kafkalite.broker.stepping import Work
from kafkalite.coordination.groups.descriptions import DescriptionSteps
from kafkalite.coordination.groups.group_coordinator import GroupCoordinator
from kafkalite.coordination.groups.request_checks import check_group_id
from kafkalite.errors import KafkaError, TopicAuthorizationFailed

ASSIGNMENTS = ("assignment", "target_assignment")
"""The fields of a described member that name topics."""

DescribeGroup: TypeAlias = Callable[[GroupCoordinator, str], DescriptionSteps]
"""Returns the fields of a group as it is now, in steps; raises GroupIdNotFound if it is of another
type."""


def describe_groups(
    node: GroupsNode,
    request: Any,
    client: ClientContext,
    check_served: Callable[[], None],
    describe: DescribeGroup,
) -> Work[Future[Response]]:
    """Return the response with the groups of a request, in steps of one member.

    `check_served` raises an error if the cluster does not serve groups of this type.
    """
    counts = Counter(request.group_ids)
    described: list[Future[Response]] = []
    for group_id in request.group_ids:
        try:
            check_served()
            client.must(DESCRIBE, GROUP, group_id)
            check_repetitions(counts[group_id])
            check_group_id(group_id)
            described.append((yield from _describe(node, request, client, group_id, describe)))
        except KafkaError as error:
            described.append(Future.of(_refused(group_id, error)))
        yield
    return all_of(described).map(lambda groups: {"groups": groups})


def _describe(
    node: GroupsNode, request: Any, client: ClientContext, group_id: str, describe: DescribeGroup
) -> Work[Future[Response]]:
    """Return a group as it is now; the response waits until its last change is committed."""
    begun: list[DescriptionSteps] = []
    host = node.groups.host_of(group_id)
    read = host.read(lambda groups: begun.append(describe(groups, group_id)))
    described: Response = {}
    for steps in begun:  # none, if the group cannot be described
        described = yield from steps
        if not (yield from _may_describe(client, described)):
            described = _refused(
                group_id,
                TopicAuthorizationFailed(
                    "The group has described topic(s) that the client is not authorized to"
                    " describe."
                ),
            )
        elif request.include_authorized_operations:
            described["authorized_operations"] = client.allowed_bits(GROUP, group_id)
    return read.map(lambda _: described).recover(lambda error: _refused(group_id, error))


def _may_describe(client: ClientContext, described: Response) -> Work[bool]:
    """Return whether a client may describe the topics that the members of a group are assigned."""
    names: set[str] = set()
    for member in described["members"]:
        for name in ASSIGNMENTS:
            if name in member:
                names.update(each["topic_name"] for each in member[name]["topic_partitions"])
        yield
    return all(client.may(DESCRIBE, TOPIC, name) for name in names)


def _refused(group_id: str, error: KafkaError) -> Response:
    return {"group_id": group_id, **error_fields(error)}
