"""Commits with member epochs under any sequence of events: offsets change by allowed commits alone.

The model is a dictionary, and the epochs in the log (tests/simulation/mixed_group_log.py).
"""

from __future__ import annotations

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from kafkalite.errors import GroupIdNotFound, UnknownMemberId
from tests.coordination.groups.consumer.test_consumer_group_properties import (
    CLIENTS,
    ConsumerGroupMachine,
)
from tests.simulation.mixed_group_log import CONSUMER, GroupLog

INDEXES = st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True)


class CommittingMachine(ConsumerGroupMachine):
    """Members, present and former ones, and processes that are no members commit offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.group_log = GroupLog()
        self.offsets: dict[tuple[str, int], int] = {}
        self.identities = [("nobody", 2)]
        self.value = 0

    @precondition(lambda self: self.harness.topics.topic("t"))
    @rule(at=CLIENTS, behind=st.integers(-1, 3), indexes=INDEXES)
    def commit(self, at: int, behind: int, indexes: list[int]) -> None:
        client = self.clients[at]
        self.commit_as(client.name, max(client.epoch - behind, 0), indexes)
        self.identities.append((client.name, client.epoch))

    @precondition(lambda self: self.harness.topics.topic("t"))
    @rule(data=st.data(), indexes=INDEXES)
    def commit_as_former_member(self, data: st.DataObject, indexes: list[int]) -> None:
        self.commit_as(*data.draw(st.sampled_from(self.identities)), indexes)

    @precondition(lambda self: self.harness.topics.topic("t"))
    @rule(indexes=INDEXES)
    def commit_without_a_member(self, indexes: list[int]) -> None:
        self.commit_as("", -1, indexes)

    def commit_as(self, member_id: str, epoch: int, indexes: list[int]) -> None:
        self.group_log.read(self.harness.log)
        self.value += 1
        topic_id = self.harness.topics.topic("t").topic_id
        offsets = {("t", index): self.value for index in indexes}
        code = self.harness.commit(
            "g", offsets, generation=epoch, member_id=member_id, topic_id=topic_id
        ).code
        if self.group_log.kind == CONSUMER:
            places = [(topic_id, index) for index in indexes]
            assert code == self.group_log.commit(member_id, epoch, places)
        elif epoch >= 0:
            assert code == (UnknownMemberId.code if self.offsets else GroupIdNotFound.code)
        if code == 0:
            self.offsets.update(offsets)

    @invariant()
    def offsets_are_those_of_accepted_commits(self) -> None:
        assert self.harness.offsets("g") == self.offsets


CommittingMachine.TestCase.settings = hypothesis_settings(
    max_examples=25, stateful_step_count=40, deadline=None
)
test_offsets_change_by_commits_with_valid_epochs_alone = CommittingMachine.TestCase
