"""Membership of share groups, at the group coordinator (KIP-932).

ShareGroupHeartbeat   v1
ShareGroupDescribe    v1

The coordinator decides (coordination/groups/share/share_membership.py).  A handler adds
authorization, and has the states of partitions initialized that are new to a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.coordinator.group_coordinators import GroupHost
from kafkalite.broker.future import Future
from kafkalite.broker.handlers.group_descriptions import describe_groups
from kafkalite.broker.handlers.groups import GroupsNode
from kafkalite.broker.security import DESCRIBE, GROUP, READ, TOPIC
from kafkalite.broker.served_apis import Response, ServingNode, serves
from kafkalite.broker.stepping import Work
from kafkalite.coordination.features import SHARE_VERSION, check_finalized
from kafkalite.coordination.groups.group_coordinator import GroupClient, GroupCoordinator
from kafkalite.coordination.groups.request_checks import (
    check_share_heartbeat,
    check_topic_count,
)
from kafkalite.coordination.groups.share.share_membership import Initialization
from kafkalite.coordination.share.state_requests import Outcome, StateInitialization
from kafkalite.coordination.topic_names import SHARE_GROUP_STATE
from kafkalite.errors import KafkaError
from kafkalite.protocol.schemas.share import SHARE_GROUP_DESCRIBE, SHARE_GROUP_HEARTBEAT
from kafkalite.protocol.schemas.share_records import SharePartitionKey

# -- ShareGroupHeartbeat -------------------------------------------------------------------------


@serves(SHARE_GROUP_HEARTBEAT, versions="1", at=ServingNode.COORDINATOR, feature=SHARE_VERSION)
def share_group_heartbeat(
    node: GroupsNode, request: Any, client: ClientContext
) -> Future[Response]:
    """Join a share group, stay in it, change the subscription, or leave."""
    check_finalized(node.image, SHARE_VERSION)
    client.must(READ, GROUP, request.group_id)
    names = request.subscribed_topic_names or ()
    check_topic_count(names)
    for name in names:
        client.must(DESCRIBE, TOPIC, name)
    check_share_heartbeat(request)
    host = node.groups.host_of(request.group_id)
    member = GroupClient(client.client_id or "", f"/{client.peer[0]}")

    def respond(response: Response) -> Response:
        initializations = response.pop("initializations")
        if initializations:
            _initialize(node, host, request.group_id, initializations)
        return response

    return host.request(
        lambda groups, token, now_ms, wall_ms: groups.share_heartbeat(
            request, member, token, now_ms, wall_ms
        )
    ).map(respond)


def _initialize(
    node: GroupsNode,
    host: GroupHost,
    group_id: str,
    initializations: Sequence[Initialization],
) -> None:
    """Have states initialized, and report the outcome to the group coordinator."""

    def report(outcomes: Sequence[Outcome] | None, error: KafkaError | None) -> None:
        succeeded: list[tuple[bytes, int]] = []
        failed: list[tuple[bytes, int]] = []
        for number, each in enumerate(initializations):
            is_failed = outcomes is None or isinstance(outcomes[number], KafkaError)
            (failed if is_failed else succeeded).append((each.topic_id, each.partition))
        report_initialized(host, group_id, succeeded, failed)

    def opened(_: None, error: KafkaError | None) -> None:
        if error is not None:
            report(None, error)
            return
        node.share_coordinators.outcomes(
            [
                StateInitialization(
                    SharePartitionKey(group_id, each.topic_id, each.partition),
                    each.state_epoch,
                    each.start_offset,
                )
                for each in initializations
            ]
        ).then(report)

    if SHARE_GROUP_STATE in node.image.topics:
        opened(None, None)
    else:
        node.local_controller.open_internal_topic(SHARE_GROUP_STATE).then(opened)


def report_initialized(
    host: GroupHost,
    group_id: str,
    succeeded: Sequence[tuple[bytes, int]],
    failed: Sequence[tuple[bytes, int]],
) -> None:
    """Record the outcome of initializations in the group."""
    host.submit(
        lambda groups, _, now_ms, wall_ms: groups.share_initialized(
            group_id, succeeded, failed, now_ms, wall_ms
        )
    )


# -- ShareGroupDescribe --------------------------------------------------------------------------


@serves(SHARE_GROUP_DESCRIBE, versions="1", at=ServingNode.COORDINATOR, feature=SHARE_VERSION)
def share_group_describe(
    node: GroupsNode, request: Any, client: ClientContext
) -> Work[Future[Response]]:
    """Return the epochs, members and assignments of share groups."""
    check_served = partial(check_finalized, node.image, SHARE_VERSION)
    describe = GroupCoordinator.describe_share
    return (yield from describe_groups(node, request, client, check_served, describe))
