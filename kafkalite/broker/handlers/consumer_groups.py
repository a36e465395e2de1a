"""Groups of the consumer protocol: heartbeats and descriptions (KIP-848).

ConsumerGroupHeartbeat   v0–v1   v1 has regular expressions, and clients make their member ids
ConsumerGroupDescribe    v0–v1   v1 has the type of each member

The coordinator decides (coordination/groups/).  A handler adds authorization, and looks up the
topics of regular expressions, in steps: their result reaches the members with later heartbeats.
Topics of an expression are those that the principal whose heartbeat began the lookup may describe.

Without the feature group.version, or without `consumer` in group.coordinator.rebalance.protocols,
both are refused with UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.controller.controller_client import ControllerClient
from kafkalite.broker.coordinator.group_coordinators import GroupHost
from kafkalite.broker.future import Future
from kafkalite.broker.handlers.group_descriptions import describe_groups
from kafkalite.broker.handlers.groups import GroupsNode
from kafkalite.broker.security import DESCRIBE, GROUP, READ, TOPIC
from kafkalite.broker.served_apis import Response, ServingNode, serves
from kafkalite.broker.stepping import Work
from kafkalite.config.group import (
    GROUP_CONSUMER_ASSIGNORS,
    GROUP_COORDINATOR_REBALANCE_PROTOCOLS,
)
from kafkalite.coordination.features import GROUP_VERSION, check_finalized
from kafkalite.coordination.groups.assignment.topic_patterns import resolve
from kafkalite.coordination.groups.consumer.consumer_group import ResolvedPattern
from kafkalite.coordination.groups.group_coordinator import (
    Decision,
    GroupClient,
    GroupCoordinator,
)
from kafkalite.coordination.groups.request_checks import (
    check_consumer_heartbeat,
    check_topic_count,
)
from kafkalite.errors import UnsupportedVersion
from kafkalite.protocol.schemas.groups import CONSUMER_GROUP_DESCRIBE, CONSUMER_GROUP_HEARTBEAT

PROTOCOL = "consumer"


class ConsumerGroupsNode(GroupsNode, Protocol):
    """The components that these requests use."""

    @property
    def controller(self) -> ControllerClient:
        """The controller, here or on another node."""


def check_protocol(node: ConsumerGroupsNode) -> None:
    """Raise UnsupportedVersion unless this cluster serves the consumer protocol."""
    check_finalized(node.image, GROUP_VERSION)
    if PROTOCOL not in node.settings[GROUP_COORDINATOR_REBALANCE_PROTOCOLS]:
        raise UnsupportedVersion(
            f"{GROUP_COORDINATOR_REBALANCE_PROTOCOLS.name} does not contain `{PROTOCOL}`."
        )


# -- ConsumerGroupHeartbeat ----------------------------------------------------------------------


@serves(
    CONSUMER_GROUP_HEARTBEAT,
    versions="0-1",
    at=ServingNode.COORDINATOR,
    feature=GROUP_VERSION,
)
def consumer_group_heartbeat(
    node: ConsumerGroupsNode, request: Any, client: ClientContext
) -> Future[Response]:
    """Join a group, stay in it, change the subscription, or leave."""
    check_protocol(node)
    client.must(READ, GROUP, request.group_id)
    names = request.subscribed_topic_names or ()
    check_topic_count(names)
    for name in names:
        client.must(DESCRIBE, TOPIC, name)
    assignors = node.settings[GROUP_CONSUMER_ASSIGNORS]
    check_consumer_heartbeat(request, client.version, assignors)
    host = node.groups.host_of(request.group_id)
    member = GroupClient(client.client_id or "", f"/{client.peer[0]}")
    response = host.request(
        lambda groups, token, now_ms, wall_ms: groups.consumer_heartbeat(
            request, member, token, now_ms, wall_ms
        )
    )
    patterns = host.machine.patterns_due(request.group_id, host.now_ms())
    if patterns:
        lookup = _look_up(node, client, host, request.group_id, patterns)
        node.groups.lookups.add(request.group_id, lookup)
    return response


def _look_up(
    node: ConsumerGroupsNode,
    client: ClientContext,
    host: GroupHost,
    group_id: str,
    patterns: Sequence[str],
) -> Work[None]:
    """Look up the topics of a group's regular expressions, and submit them to the coordinator."""
    may_describe = partial(client.may, DESCRIBE, TOPIC)
    version, begun_ms = node.controller.offset, node.clock.wall_ms()
    found = yield from resolve(patterns, sorted(node.image.topics), may_describe)
    resolved = {
        pattern: ResolvedPattern(frozenset(names), version, begun_ms)
        for pattern, names in found.items()
    }
    host.submit(partial(_record_patterns, group_id, resolved))


def _record_patterns(
    group_id: str,
    resolved: Mapping[str, ResolvedPattern],
    groups: GroupCoordinator,
    token: Any,
    now_ms: int,
    wall_ms: int,
) -> Decision:
    return groups.patterns_resolved(group_id, resolved, token, now_ms, wall_ms)


# -- ConsumerGroupDescribe -----------------------------------------------------------------------


@serves(
    CONSUMER_GROUP_DESCRIBE,
    versions="0-1",
    at=ServingNode.COORDINATOR,
    feature=GROUP_VERSION,
)
def consumer_group_describe(
    node: ConsumerGroupsNode, request: Any, client: ClientContext
) -> Work[Future[Response]]:
    """Return the epochs, members and assignments of groups."""
    check_served, describe = partial(check_protocol, node), GroupCoordinator.describe_consumer
    return (yield from describe_groups(node, request, client, check_served, describe))
