"""Members of a group without I/O: their machines and the coordinator's, with lost messages."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from kafkalite.client.group.classic_protocol_member import ClassicProtocolMember
from kafkalite.client.group.consumer_protocol_member import ConsumerProtocolMember
from kafkalite.client.group.membership import (
    AssignmentChange,
    ChangeKind,
    MemberRequest,
    MemberSettings,
    MembershipState,
    SubscribedTopics,
)
from kafkalite.client.net.topology import PartitionMetadata, TopicMetadata, TopicPartition
from kafkalite.coordination.groups.group_coordinator import GroupClient
from kafkalite.errors import GroupIdNotFound, KafkaError, NetworkException
from kafkalite.protocol.schema import Fields
from kafkalite.protocol.schemas.groups import (
    CONSUMER_GROUP_HEARTBEAT,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    SYNC_GROUP,
)
from tests.coordination.groups.harness import GroupHarness, read_as

LEADER = PartitionMetadata(0, 0)
ROUNDS_MAX = 400
SETTINGS = MemberSettings(
    "g", session_timeout_s=10.0, max_poll_interval_s=30.0, heartbeat_interval_s=3.0
)


def metadata_of(name: str, count: int, topic_id: bytes | None = None) -> TopicMetadata:
    """Return the metadata of a topic with this many partitions."""
    topic_id = topic_id or name.encode().ljust(16, b".")
    return TopicMetadata(name, topic_id, dict.fromkeys(range(count), LEADER))


class SimulatedMember:
    """A membership machine, the request in flight, and the application that applies changes.

    `send` has the request handled by a coordinator and returns a function that returns the
    response's fields, a KafkaError, or None while the coordinator delays it.
    """

    def __init__(
        self,
        name: str,
        membership: Any,
        send: Callable[[SimulatedMember, MemberRequest], Callable[[], Any]],
        topics: dict[str, TopicMetadata],
    ) -> None:
        self.name = name
        self.membership = membership
        self.topics = topics
        self.is_running = True
        self.change: AssignmentChange | None = None
        self.log: list[tuple[ChangeKind, tuple[TopicPartition, ...]]] = []
        self._send = send
        self._sent: tuple[MemberRequest, Callable[[], Any]] | None = None

    def __repr__(self) -> str:
        return f"{self.name} {self.membership.state.name} {sorted(self.membership.owned)}"

    @property
    def is_stable(self) -> bool:
        return self.membership.state is MembershipState.STABLE

    def subscribe(self, *names: str, now_s: float) -> None:
        self.membership.subscribe(SubscribedTopics(names), now_s)

    def step(self, now_s: float, *, loses: str = "") -> None:
        """Do what the heartbeat thread does: take a response, give metadata, send a request."""
        self.take_response(now_s, is_lost=loses == "response")
        self.give_topics(now_s)
        request = self.membership.next_request(now_s)
        if request is None:
            return
        if loses == "request":
            self.membership.handle_failure(request, NetworkException(), now_s)
            return
        self._sent = request, self._send(self, request)
        self.take_response(now_s, is_lost=loses == "response")
        self.give_topics(now_s)

    def give_topics(self, now_s: float) -> None:
        wanted = self.membership.topics_wanted
        if wanted is not None:
            wanted = wanted or self.membership.topics_watched
        if wanted is None or wanted:
            names = self.topics if wanted is None else self.topics.keys() & set(wanted)
            self.membership.update_topics({name: self.topics[name] for name in names}, now_s)
        if isinstance(self.membership, ClassicProtocolMember):
            task = self.membership.assignment_task
            if task is not None:
                self.membership.assign(task, task.compute(), now_s)

    def take_response(self, now_s: float, *, is_lost: bool = False) -> None:
        if self._sent is None:
            return
        request, response_of = self._sent
        found = NetworkException() if is_lost else response_of()
        if found is None:
            return
        self._sent = None
        if isinstance(found, KafkaError):
            self.membership.handle_failure(request, found, now_s)
            return
        version = request.api.versions[1]
        encoded = request.api.response.write(version, found)
        response: Fields = request.api.response.read(version, encoded)
        self.membership.handle_response(request, response, now_s)

    def begin_change(self, now_s: float) -> None:
        """Poll, and begin to apply a change."""
        self.membership.polled(now_s)
        if self.change is None:
            self.change = self.membership.take_change()
            if self.change is not None:
                self.log.append((self.change.kind, tuple(self.change.partitions)))

    def end_change(self, now_s: float) -> None:
        """End the change that is being applied."""
        if self.change is not None:
            change, self.change = self.change, None
            self.membership.applied(change, now_s)

    def poll(self, now_s: float) -> None:
        """Apply every change."""
        while True:
            self.begin_change(now_s)
            if self.change is None:
                return
            self.end_change(now_s)


class SimulatedGroup:
    """Members of the group "g" on topic "t", over the coordinator's machine and its clock."""

    def __init__(self, partitions: int = 5) -> None:
        self.harness = GroupHarness()
        self.topics: dict[str, TopicMetadata] = {}
        self.members: list[SimulatedMember] = []
        self.create(partitions)

    @property
    def now_s(self) -> float:
        return self.harness.now_ms / 1000

    def create(self, partitions: int) -> None:
        """Create the topic, in place of the former one."""
        topic_id = self.harness.topics.create("t", partitions)
        self.topics["t"] = metadata_of("t", partitions, topic_id)
        self.harness.machine.topics_changed(["t"])

    def grow(self, partitions: int) -> None:
        """Add partitions to the topic."""
        self.harness.topics.grow("t", partitions)
        self.topics["t"] = metadata_of("t", partitions, self.topics["t"].topic_id)
        self.harness.machine.topics_changed(["t"])

    def add_classic(self, *strategies: str, **options: Any) -> SimulatedMember:
        """Add a member by the classic protocol."""
        settings = SETTINGS._replace(strategies=strategies, **options)
        return self._add(ClassicProtocolMember(settings))

    def add_consumer(self, **options: Any) -> SimulatedMember:
        """Add a member by the consumer protocol."""
        settings = SETTINGS._replace(**options)
        return self._add(ConsumerProtocolMember(settings, f"m{len(self.members)}"))

    def _add(self, membership: Any) -> SimulatedMember:
        name = f"m{len(self.members)}"
        member = SimulatedMember(name, membership, self.send, self.topics)
        member.subscribe("t", now_s=self.now_s)
        self.members.append(member)
        return member

    def send(self, member: SimulatedMember, request: MemberRequest) -> Callable[[], Any]:
        """Have the coordinator handle a request; return the function that returns the response."""
        harness, api = self.harness, request.api
        machine, client = harness.machine, GroupClient(member.name, "/127.0.0.1")
        version = api.versions[1]
        body = read_as(api, version, **request.fields(version))
        now_ms, wall_ms = harness.now_ms, harness.wall_ms
        if api is JOIN_GROUP:
            sent = harness.decide("join", lambda token: machine.join(
                "g", body, client, version, token, now_ms, wall_ms,
            ))  # fmt: skip
        elif api is SYNC_GROUP:
            sent = harness.decide(
                "sync", lambda token: machine.sync(body, version, token, now_ms, wall_ms)
            )
        elif api is HEARTBEAT:
            sent = harness.decide("beat", lambda token: machine.heartbeat(body, token, now_ms))
        elif api is CONSUMER_GROUP_HEARTBEAT:
            sent = harness.decide("beat", lambda token: machine.consumer_heartbeat(
                body, client, token, now_ms, wall_ms,
            ))  # fmt: skip
        else:
            assert api is LEAVE_GROUP
            sent = harness.leave("g", *[(each.member_id, None) for each in body.members])

        def response() -> Any:
            if sent.waits:
                return None if machine is harness.machine else NetworkException()
            if sent.fault is not None:
                return {"error_code": sent.fault.code}
            return {"members": []} if api is LEAVE_GROUP else sent.response

        return response

    def fence(self, member: SimulatedMember) -> None:
        """Have the coordinator drop a member of the consumer protocol."""
        fields = {"group_id": "g", "member_id": member.membership.member_id, "member_epoch": -1}
        self.send(member, MemberRequest(CONSUMER_GROUP_HEARTBEAT, lambda version: fields, 0))

    def known_ids(self) -> set[str]:
        """Return the ids of the members that the coordinator has not dropped."""
        try:
            return {each["member_id"] for each in self.harness.described()["members"]}
        except GroupIdNotFound:
            return set(self.harness.member_ids("g"))

    def check(self) -> None:
        """Assert that no partition is owned by two members that the coordinator knows."""
        known = self.known_ids()
        members = [each for each in self.members if each.membership.member_id in known]
        assert not owned_twice(members), self.members

    def settle(self) -> None:
        """Run everything without faults until the running members are stable."""
        for _ in range(ROUNDS_MAX):
            for member in self.members:
                if member.is_running:
                    member.end_change(self.now_s)
                    member.poll(self.now_s)
                    self.check()
                    member.step(self.now_s)
                    self.check()
            running = [member for member in self.members if member.is_running]
            owned = [p for member in running for p in member.membership.owned]
            if (
                all(member.is_stable for member in running)
                and len(owned) == len(self.topics["t"].partitions) * bool(running)
                and self.known_ids() == {each.membership.member_id for each in running}
            ):
                return
            self.harness.after(500)
        raise AssertionError(f"the group does not settle: {self.members}")


def owned_twice(members: Collection[SimulatedMember]) -> list[TopicPartition]:
    """Return the partitions that more than one of these members owns."""
    seen: set[tuple[TopicPartition, bytes]] = set()
    twice = []
    for member in members:
        for entry in member.membership.owned.items():
            if entry in seen:
                twice.append(entry[0])
            seen.add(entry)
    return twice
