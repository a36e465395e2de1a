"""NativeGroups: groups read with the native client, for fields that librdkafka does not have.

These are share groups (KIP-932), and epochs and the states Assigning and Reconciling of consumer
groups (KIP-848).  The native client needs a plaintext connection: on others share groups are not
found, epochs are not shown, and these states are Unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from kafkalite.cli.clients import REQUEST_TIMEOUT_S, ClusterClients
from kafkalite.cli.command import columns
from kafkalite.cli.membership import by_topic, format_partitions
from kafkalite.cli.reading import PartitionKey
from kafkalite.client.admin.admin import Admin
from kafkalite.client.admin.group_requests import SHARE, GroupDescription, GroupListing
from kafkalite.errors import GroupIdNotFound, KafkaError, Refusal

PLAINTEXT = "plaintext"
"""The only security protocol of the native client."""


class NativeGroups:
    """Reads and changes the groups of a cluster with the native client."""

    def __init__(self, cluster: ClusterClients, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self._cluster = cluster
        self._timeout_ms = int(timeout_s * 1000)
        self._security = cluster.properties.get("security.protocol", "plaintext").lower()

    @contextmanager
    def admin(self) -> Iterator[Admin]:
        """Yield the native client's Admin; raise Refusal for its errors."""
        if self._security != PLAINTEXT:
            raise Refusal(
                f"this request requires security.protocol=plaintext, not {self._security}: use a"
                " plaintext listener"
            )
        bootstrap = self._cluster.bootstrap
        try:
            with Admin(bootstrap, default_api_timeout_ms=self._timeout_ms) as admin:
                yield admin
        except KafkaError as error:
            raise Refusal(str(error).rstrip(".")) from None

    def listed(self) -> dict[str, GroupListing]:
        """Return the groups of all types by name."""
        if self._security != PLAINTEXT:
            return {}
        with self.admin() as admin:
            return {each.group_id: each for each in admin.list_groups()}

    def described(self, group: str) -> GroupDescription | None:
        """Return a group with its epochs, or None if it is not found."""
        if self._security != PLAINTEXT:
            return None
        with self.admin() as admin:
            try:
                return admin.describe_group(group)
            except GroupIdNotFound:
                return None

    def share_group(self, group: str) -> dict[str, Any] | None:
        """Return a share group as `--json` prints it, or None if there is none of this name."""
        found = self.described(group)
        if found is None or found.type != SHARE:
            return None
        with self.admin() as admin:
            offsets = admin.share_offsets(group)
            ends = admin.list_offsets(dict.fromkeys(offsets, admin.LATEST))
        node = self._cluster.metadata(self._cluster.admin()).brokers[found.coordinator]
        return {
            "name": group,
            "state": found.state,
            "type": found.type,
            "assignor": found.assignor,
            "epoch": found.epoch,
            "assignment_epoch": found.assignment_epoch,
            "coordinator": {"id": node.id, "host": node.host, "port": node.port},
            "lag": sum(each.lag or 0 for each in offsets.values()),
            "partitions": [
                {
                    "topic": place.topic,
                    "partition": place.partition,
                    "start": each.start_offset,
                    "end": ends[place].offset,
                    "lag": each.lag,
                    "in_flight": each.in_flight,
                    "deliveries": each.deliveries,
                }
                for place, each in sorted(offsets.items())
            ],
            "members": [
                {
                    "id": member.member_id,
                    "client_id": member.client_id,
                    "host": member.host,
                    "epoch": member.epoch,
                    "partitions": by_topic(member.partitions),
                }
                for member in found.members
            ],
        }

    def reset(self, group: str, offsets: Mapping[PartitionKey, int]) -> None:
        """Set the start offsets of a share group without members."""
        with self.admin() as admin:
            admin.alter_share_offsets(group, offsets)

    def delete_offsets(self, group: str, topics: list[str]) -> None:
        """Delete the state of topics of a share group without members."""
        with self.admin() as admin:
            admin.delete_share_offsets(group, topics)


def check_group_type(cluster: ClusterClients, group: str, *, is_share: bool, advice: str) -> None:
    """Raise Refusal, with this advice, if a group exists that only members of other types can join.

    The broker's response to such a member says that the group does not exist.  A group that is not
    found, or not in time, is left to the member.
    """
    found = None
    with suppress(Refusal):
        found = NativeGroups(cluster).described(group)
    if found is None or (found.type == SHARE) == is_share:
        return
    wanted = " for a share group" if is_share else ""
    raise Refusal(
        f"group {group} is a {found.type} group: {advice}, or choose another name{wanted}"
    )


def state_of(found: GroupListing | GroupDescription | None) -> str:
    """Return the state of a group; "" if it is unknown."""
    return found.state if found else ""


def epochs(found: GroupDescription | None) -> dict[str, int | None]:
    """Return the epochs of a group as `--json` prints them; null if it has none."""
    return {
        "epoch": found.epoch if found else None,
        "assignment_epoch": found.assignment_epoch if found else None,
    }


def share_page(group: Mapping[str, Any]) -> str:
    """Return a share group's description as text."""
    node = group["coordinator"]
    lines = [
        f"group {group['name']}",
        f"state {group['state']} ({group['type']}, {group['assignor']}, epoch {group['epoch']})",
        f"coordinator node {node['id']} at {node['host']}:{node['port']}",
        f"lag {group['lag']}",
    ]
    if group["partitions"]:
        keys = ["topic", "partition", "start", "end", "lag", "in_flight", "deliveries"]
        rows = [[each[key] for key in keys] for each in group["partitions"]]
        lines += ["", columns([key.replace("_", " ").upper() for key in keys], rows)]
    if group["members"]:
        rows = [
            [
                member["id"],
                member["client_id"],
                member["host"],
                member["epoch"],
                format_partitions(member["partitions"]) or None,
            ]
            for member in group["members"]
        ]
        lines += ["", columns(["MEMBER", "CLIENT", "HOST", "EPOCH", "PARTITIONS"], rows)]
    return "\n".join(lines)
