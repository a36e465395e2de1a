"""Checks of group requests that do not depend on the group's state.

The error messages are Kafka's, for programs that search for them.
"""

from __future__ import annotations

from collections.abc import Collection, Sized

from kafkalite.coordination.groups.group import LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from kafkalite.coordination.groups.offsets.commit_records import TEXT_SIZE_MAX, is_storable
from kafkalite.errors import InvalidGroupId, InvalidRequest, UnsupportedAssignor
from kafkalite.protocol.schema import Fields

SHOWN_LENGTH_MAX = 100
OWN_MEMBER_ID_SINCE = 1
"""The ConsumerGroupHeartbeat version from which clients make their own member ids."""
SHARE_MEMBER_ID_LENGTH_MAX = 36
"""Maximum length of the member id of a share group: that of a UUID as text."""
SUBSCRIBED_TOPICS_MAX = 10_000
"""Maximum number of topics that a member names: each epoch of its group looks them up."""


def check_group_id(group_id: str) -> None:
    """Raise an error if the group id is empty or longer than a record allows."""
    if not group_id:
        raise InvalidGroupId("The group id is empty.")
    check_texts(group_id)


def check_texts(*texts: str | None) -> None:
    """Raise InvalidRequest if a text is longer than a record allows."""
    for text in texts:
        if text is not None and not is_storable(text):
            raise InvalidRequest(f"A string in a group request has at most {TEXT_SIZE_MAX} bytes.")


def check_topic_count(names: Sized) -> None:
    """Raise InvalidRequest if a member subscribes to too many topics by name."""
    if len(names) > SUBSCRIBED_TOPICS_MAX:
        raise InvalidRequest(
            f"A member of a group names {len(names)} topics; at most {SUBSCRIBED_TOPICS_MAX} are"
            " allowed. In a consumer group, a regular expression can match more."
        )


def check_consumer_heartbeat(request: Fields, version: int, assignors: Collection[str]) -> None:
    """Raise an error for a ConsumerGroupHeartbeat that is invalid whatever the group's state is."""
    epoch = request.member_epoch
    is_id_required = version >= OWN_MEMBER_ID_SINCE or epoch > 0 or epoch == LEAVE_EPOCH
    if is_id_required and not request.member_id.strip():
        raise InvalidRequest("MemberId can't be empty.")
    if not request.group_id.strip():
        raise InvalidRequest("GroupId can't be empty.")
    for name, text in (("InstanceId", request.instance_id), ("RackId", request.rack_id)):
        if text is not None and not text.strip():
            raise InvalidRequest(f"{name} can't be empty.")
    if epoch == 0:
        _check_join(request)
    elif epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        raise InvalidRequest("InstanceId can't be null.")
    elif epoch < LEAVE_STATIC_EPOCH:
        raise InvalidRequest("MemberEpoch is invalid.")
    assignor = request.server_assignor
    if assignor is not None and assignor not in assignors:
        raise UnsupportedAssignor(
            f"ServerAssignor {assignor[:SHOWN_LENGTH_MAX]} is not supported. Supported assignors:"
            f" {', '.join(assignors)}."
        )
    check_texts(request.group_id, request.member_id, request.instance_id, request.rack_id)
    check_texts(*(request.subscribed_topic_names or ()))


def _check_join(request: Fields) -> None:
    if request.rebalance_timeout_ms == -1:
        raise InvalidRequest("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise InvalidRequest("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise InvalidRequest(
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when"
            " (re-)joining."
        )


def check_share_heartbeat(request: Fields) -> None:
    """Raise an error for a ShareGroupHeartbeat that is invalid whatever the group's state is."""
    if not request.group_id.strip():
        raise InvalidRequest("GroupId can't be empty.")
    check_share_member_id(request.member_id)
    if request.rack_id is not None and not request.rack_id.strip():
        raise InvalidRequest("RackId can't be empty.")
    if request.member_epoch == 0 and not request.subscribed_topic_names:
        raise InvalidRequest("SubscribedTopicNames must be set in first request.")
    if request.member_epoch < LEAVE_EPOCH:
        raise InvalidRequest("MemberEpoch is invalid.")
    check_texts(request.group_id, request.rack_id, *(request.subscribed_topic_names or ()))


def check_share_member_id(member_id: str) -> None:
    """Raise InvalidRequest unless this may be the id of a member of a share group."""
    if not member_id.strip() or len(member_id) > SHARE_MEMBER_ID_LENGTH_MAX:
        raise InvalidRequest(f"MemberId must have 1 to {SHARE_MEMBER_ID_LENGTH_MAX} characters.")
