"""aiokafka and kafka-python, of the classic protocol, beside members of the consumer protocol.

Each statement of docs/compatibility.md about such groups has a test here.  The member of the
consumer protocol is one of librdkafka.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

import pytest
from confluent_kafka import ConsumerGroupState

from kafkalite import Admin
from kafkalite.testing import Broker
from tests.client.conftest import SHORT_TIMES
from tests.conformance.clients import AIOKAFKA, KAFKA_PYTHON, LIBRDKAFKA
from tests.conformance.driven import Driven, DrivenMember
from tests.conformance.table import COOPERATIVE, Kafka, done, until

PARTITIONS = 4
CLASSIC = {"session.timeout.ms": "45000", "heartbeat.interval.ms": "100"}
NEW = {"group.protocol": "consumer"}
CONFIG = {
    **SHORT_TIMES, "group.min.session.timeout.ms": "500",
    "group.consumer.max.session.timeout.ms": "600000",
    "group.consumer.session.timeout.ms": "600000",
}  # fmt: skip
ASSIGNORS = ("range", "roundrobin", "sticky")
INCONSISTENT, IN_PROGRESS = "InconsistentGroupProtocolError", "RebalanceInProgressError"


class Neighbours:
    """A group on a broker, and its members."""

    def __init__(self, broker: Broker, client: Driven, name: str) -> None:
        self.broker, self.client = broker, client
        self.kafka = Kafka(broker.bootstrap)
        self.name = f"{client.name}-{name}"
        self.members: list[DrivenMember] = []
        with Admin(broker.bootstrap) as admin:
            admin.create_topic(self.name, partitions=PARTITIONS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.kill()

    def join(self, **settings: str) -> DrivenMember:
        """Start a member of the client with the classic protocol."""
        return self._join(self.client, CLASSIC | dotted(settings))

    def join_new(self) -> DrivenMember:
        """Start a member of the consumer protocol."""
        return self._join(LIBRDKAFKA, NEW)

    def begin_new(self) -> DrivenMember:
        """Start the first member of the group, of the consumer protocol."""
        new = self.join_new()
        self.settle(new)  # a member that joined before it would be interrupted
        return new

    def _join(self, client: Driven, settings: Mapping[str, str]) -> DrivenMember:
        member = client.join(self.kafka, self.name, [self.name], settings)
        self.members.append(member)
        return member

    def leave(self, member: DrivenMember) -> None:
        self.members.remove(member)
        member.leave()

    def settle(self, *members: DrivenMember, count: int = PARTITIONS) -> None:
        """Wait until these members, and no others, have a part of all partitions each."""

        def settled() -> bool:
            owned = [sorted(partition for _, partition in each.assigned) for each in members]
            assert not any(each.faults for each in members), [each.faults for each in members]
            numbers = sorted(number for each in owned for number in each)
            return all(owned) and numbers == [*range(count)] and self.state() == "STABLE"

        until(settled)

    def state(self) -> str:
        (found,) = done(self.kafka.admin.describe_consumer_groups([self.name]))
        state: ConsumerGroupState = found.state
        return state.name

    def ask(self, what: str, **arguments: Any) -> Any:
        return self.client.ask(self.kafka, what, **arguments)


def dotted(settings: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in settings.items()}


def changes_of(member: DrivenMember, since: int = 0) -> list[tuple[str, list[int]]]:
    """Return a member's callbacks with their partitions."""
    return [
        (what, sorted(partition for _, partition in places))
        for what, places in member.changes[since:]
    ]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(workers=0, config=CONFIG) as broker:
        yield broker


@pytest.fixture(scope="module")
def strict_broker() -> Iterator[Broker]:
    """A broker that does not change the type of groups with members."""
    with Broker(workers=0, config={**CONFIG, "group.consumer.migration.policy": "disabled"}) as it:
        yield it


@pytest.fixture(params=[AIOKAFKA, KAFKA_PYTHON], ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Driven:
    found: Driven = request.param
    return found


@pytest.fixture
def group(broker: Broker, client: Driven, request: pytest.FixtureRequest) -> Iterator[Neighbours]:
    group = Neighbours(broker, client, request.node.originalname)
    with group:
        yield group


@pytest.fixture
def strict_group(
    strict_broker: Broker, client: Driven, request: pytest.FixtureRequest
) -> Iterator[Neighbours]:
    group = Neighbours(strict_broker, client, request.node.originalname)
    with group:
        yield group


@pytest.mark.parametrize("assignor", ASSIGNORS)
@pytest.mark.parametrize("client", [AIOKAFKA, KAFKA_PYTHON], ids=lambda client: client.name)
def test_eager_members_give_up_all_partitions_at_each_change(broker, client, assignor):
    group = Neighbours(broker, client, f"eager-{assignor}")
    with group:
        classic = [group.join(partition_assignment_strategy=assignor) for _ in range(2)]
        group.settle(*classic)
        had = [each.assigned for each in classic]
        before = [len(each.changes) for each in classic]
        new = group.join_new()
        group.settle(*classic, new)
        for member, owned, since in zip(classic, had, before, strict=True):
            what, places = member.changes[since]
            assert (what, places) == ("revoked", owned)
            assert member.assigned <= owned
        before = [len(each.changes) for each in classic]
        group.leave(new)
        group.settle(*classic)
        for member, since in zip(classic, before, strict=True):
            assert member.changes[since][0] == "revoked"


@pytest.mark.parametrize("client", [KAFKA_PYTHON], ids=lambda client: client.name)
def test_cooperative_members_give_up_only_what_moves(group):
    classic = [group.join(partition_assignment_strategy=COOPERATIVE) for _ in range(2)]
    group.settle(*classic)
    before = [len(each.changes) for each in classic]
    new = group.join_new()
    group.settle(*classic, new)
    after = [changes_of(each, since) for each, since in zip(classic, before, strict=True)]
    revoked = [partition for each in after for what, some in each if what == "revoked"
               for partition in some]  # fmt: skip
    assert revoked == [partition for _, partition in new.assigned]


def test_member_without_a_common_assignor_is_refused(group):
    new = group.begin_new()
    first = group.join(partition_assignment_strategy="range")
    group.settle(first, new)
    other = group.join(partition_assignment_strategy="roundrobin")
    until(lambda: any(INCONSISTENT in fault for fault in other.faults))
    group.settle(first, new)


def test_classic_member_is_refused_by_a_consumer_group_if_the_policy_is_disabled(strict_group):
    new = strict_group.begin_new()
    classic = strict_group.join()
    until(lambda: any(INCONSISTENT in fault for fault in classic.faults))
    strict_group.settle(new)


def test_new_member_is_refused_by_a_classic_group_if_the_policy_is_disabled(strict_group):
    classic = strict_group.join()
    strict_group.settle(classic)
    before = changes_of(classic)
    new = strict_group.join_new()
    until(lambda: any("group id does not exist" in fault for fault in new.faults))
    strict_group.settle(classic)
    assert changes_of(classic) == before


def test_session_timeout_is_that_of_the_member(group):
    """The group's own, for members of the consumer protocol, is longer than the test waits."""
    new = group.begin_new()
    classic = group.join(session_timeout_ms="1000")
    group.settle(classic, new)
    classic.kill()
    group.settle(new)


def test_member_that_waits_to_join_is_interrupted_by_an_upgrade(group):
    """kafka-python joins again; aiokafka ends with the error."""
    # It does not notice the rebalance, so that the next one waits for it.
    first = group.join(heartbeat_interval_ms="14000")
    group.settle(first)
    waiting = group.join()
    until(lambda: group.state() == "PREPARING_REBALANCING")
    new = group.join_new()
    if group.client is AIOKAFKA:
        until(lambda: any(IN_PROGRESS in fault for fault in waiting.faults))
    else:
        group.leave(first)
        group.settle(waiting, new)


def test_member_joins_a_consumer_group_without_waiting_for_others(group):
    new = group.begin_new()
    first = group.join(heartbeat_interval_ms="14000")
    group.settle(first, new)
    before = changes_of(first)
    second = group.join()
    until(lambda: second.changes)
    assert changes_of(first) == before
    group.leave(first)
    group.settle(second, new)


def test_added_partitions_are_assigned_though_the_client_does_not_refresh(group):
    """Both clients refresh their metadata every five minutes."""
    new = group.begin_new()
    classic = group.join()
    group.settle(classic, new)
    with Admin(group.broker.bootstrap) as admin:
        admin.create_partitions(group.name, 6)
    group.settle(classic, new, count=6)


def test_static_member_gets_its_partitions_again(group):
    new = group.begin_new()
    classic = group.join(group_instance_id="i")
    group.settle(classic, new)
    owned, others = classic.assigned, changes_of(new)
    classic.kill()
    again = group.join(group_instance_id="i")
    group.settle(again, new)
    assert again.assigned == owned
    assert changes_of(new) == others


def test_administration_lists_the_group_and_describes_none(group):
    new = group.begin_new()
    classic = group.join()
    group.settle(classic, new)
    assert group.name in group.ask("list_groups")
    assert group.ask("describe_group", group=group.name)["state"] == "Dead"
    classic.commit({next(iter(classic.assigned)): (3, "three")})
    ((*_, offset, metadata),) = group.ask("group_offsets", group=group.name)
    assert (offset, metadata) == (3, "three")
