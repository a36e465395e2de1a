"""ShareProtocolMember: a member of a share group (KIP-932): the coordinator assigns.

It is a member by the consumer protocol, with another request: ShareGroupHeartbeat sends no owned
partitions, no timeout and no expression, and there are no static members.  Several members may have
the same partition, so none waits until another has released it, and nothing is acknowledged; a
change that was applied is followed by a heartbeat all the same, which does no harm.
"""

from __future__ import annotations

from kafkalite.client.group.consumer_protocol_member import LEAVE_EPOCH, ConsumerProtocolMember
from kafkalite.protocol.schemas.share import SHARE_GROUP_HEARTBEAT


class ShareProtocolMember(ConsumerProtocolMember):
    """The member; its subscription has names only."""

    api = SHARE_GROUP_HEARTBEAT

    def _heartbeat(self) -> dict[str, object]:
        fields = self._named(self.epoch)
        if self._sends_all or self._topics != self._sent_topics:
            fields["subscribed_topic_names"] = sorted(self._topics.names)
        self._sends_all = False
        self._sent_topics = self._topics
        return fields

    def _leave(self) -> dict[str, object]:
        return self._named(LEAVE_EPOCH)

    def _named(self, epoch: int) -> dict[str, object]:
        return {
            "group_id": self._settings.group_id,
            "member_id": self.member_id,
            "member_epoch": epoch,
        }
