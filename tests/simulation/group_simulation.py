"""A group under random events: members, zombie members, admins, a clock, a log, restarts.

Every step is drawn from a seed.  After each step these invariants are checked:

    each generation     has one leader, the same for all members; the leader knows all members
    each partition      has one owner a generation: the member that the leader assigned it to
    each request        gets one response, at the latest once everything has expired
    each commit         is by a member of the newest generation, not by a removed or replaced one
    each offset         is the last one committed, until it is deleted or expires
    the log             replays to the same state, and so does its minimal set of records
"""

from __future__ import annotations

import random
from typing import Any

from kafkalite.coordination.groups.classic.classic_group import ClassicGroup
from kafkalite.coordination.groups.decision_draft import JOIN, NO_TOKEN, SESSION, SYNC, DeadlineKey
from kafkalite.coordination.groups.group import GroupState
from kafkalite.protocol.schemas import group_records
from tests.coordination.groups.harness import (
    RETENTION_MS,
    Client,
    GroupHarness,
    GroupRequest,
    subscription,
)

PARTITIONS = range(12)
GROUP = "g"
PROTOCOLS = [
    {"range": subscription("t"), "sticky": subscription("t")},
    {"sticky": subscription("t"), "range": subscription("t")},
    {"range": subscription("t", "u")},
    {"range": b"\xff", "sticky": b""},
]


class RandomClient(Client):
    """A client that takes random steps, and the responses it has received."""

    def __init__(self, harness: GroupHarness, name: str, rng: random.Random) -> None:
        super().__init__(
            harness,
            name,
            instance_id=f"i-{name[0]}" if name < "d" else None,
            protocols=rng.choice(PROTOCOLS),
            session_ms=rng.choice([6_000, 10_000, 45_000]),
            rebalance_ms=rng.choice([5_000, 20_000]),
            version=rng.choice([5, 9]) if name < "d" else rng.choice([3, 5, 9]),
        )
        self.syncing: GroupRequest | None = None
        self.joined_generation = 0
        """The generation in the last successful JoinGroup response."""
        self.owns: frozenset[int] = frozenset()

    def take_member_id(self) -> None:
        super().take_member_id()
        if self.joined is not None and not self.joined.waits and self.joined.code == 0:
            self.joined_generation = self.joined.generation_id


class GroupSimulation:
    """One run: the clients, their events, and the invariants checked after each of them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.harness = GroupHarness(
            max_size=self.random.choice([4, 100]),
            initial_rebalance_delay_ms=self.random.choice([0, 0, 3_000]),
        )
        self.clients = [
            RandomClient(self.harness, name, self.random)
            for name in "adbefcg"[: self.random.randrange(2, 8)]
        ]
        self.zombies: list[tuple[str, str | None, int]] = []
        self.waiting: dict[GroupRequest, RandomClient | None] = {}
        self.ended: set[str] = set()
        """Ids of members that left or were replaced by another process."""
        self.leaders: dict[int, Any] = {}
        """The leader and its list of members, (id, instance id), by generation."""
        self.assignments: dict[int, dict[str, bytes]] = {}
        self.newest = 0
        self.fenced: set[str] = set()
        """Those of `ended` that a record has removed from the group."""
        self.instances: dict[str, str | None] = {}
        """Instance ids by member id."""
        self.announced_leader: dict[int, str] = {}
        self.failed_count = 0
        """Number of failed writes when the group was last seen in another state than Stable."""
        self.offsets: dict[tuple[str, int], tuple[int, int]] = {}
        """The last committed offset and its time, by partition."""
        self.accepted = 0

    # -- events ------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        events = [
            (self.rebalance_after_leave, 60),
            (self.rejoin, 1),
            (self.leave, 0.5),
            (self.kill_client, 0.5),
            (self.change_protocols, 0.5),
            (self.send_as_zombie, 5),
            (self.commit_as_admin, 1),
            (self.remove_static_member, 0.3),
            (self.delete, 1),
            (self.advance_clock, 10),
            (self.advance_clock_far, 0.5),
            (self.restart, 0.5),
            (self.toggle_writes, 1),
        ]
        weights = [weight for _, weight in events]
        for _ in range(steps):
            event = self.random.choices(events, weights)[0][0]
            event()
            self.take_responses()
            if GROUP not in self.harness.machine.groups:
                # The group was deleted, and with it its generation counter.
                self.newest, self.leaders, self.assignments, self.announced_leader = 0, {}, {}, {}
            self.check()
        self.end()

    def random_client(self) -> RandomClient:
        return self.random.choice(self.clients)

    def rebalance_after_leave(self) -> None:
        """Have a random client send its next request."""
        client = self.random_client()
        if client.joined is None:
            self.join(client)
        elif client.joined.waits or (client.syncing is not None and client.syncing.waits):
            return
        elif client.joined.code:
            self.handle_error(client, client.joined)
        elif client.syncing is None:
            self.sync(client)
        elif client.syncing.code:
            self.handle_error(client, client.syncing)
        elif self.random.random() < 0.5:
            self.handle_error(client, client.beat(client.joined_generation))
        else:
            self.commit_as_member(client.member_id, client.instance_id, client.joined_generation)

    def handle_error(self, client: RandomClient, asked: GroupRequest) -> None:
        """Handle an error as a client does: join again, with the member id if it is still valid."""
        assert not asked.waits
        if asked.code == 79:
            client.member_id = asked.member_id
        elif asked.code in (25, 81, 82):
            client.member_id = ""
        if asked.code:
            client.joined = client.syncing = None

    def rejoin(self) -> None:
        self.join(self.random_client())

    def join(self, client: RandomClient) -> None:
        self.zombies.append((client.member_id, client.instance_id, client.joined_generation))
        before = self.holder(client.instance_id)
        asked = client.send_join()
        self.waiting[asked] = client
        client.syncing = None
        holder = self.holder(client.instance_id)
        if before is not None and holder != before:
            self.ended.add(before)
            if not asked.waits and asked.code == 0:
                self.fenced.add(before)

    def holder(self, instance_id: str | None) -> str | None:
        """Return the member id of an instance id, as an admin sees it."""
        members = self.harness.machine.describe(GROUP, 5)["members"]
        ids = [each["member_id"] for each in members if each["group_instance_id"] == instance_id]
        return ids[0] if instance_id is not None and ids else None

    def sync(self, client: RandomClient) -> None:
        assert client.joined is not None
        members = client.joined.members
        assignment_of: dict[str, bytes] = {}
        if members and not client.joined.skip_assignment:
            order = [each["member_id"] for each in members]
            for at in PARTITIONS:
                assignment_of.setdefault(order[at % len(order)], b"")
                assignment_of[order[at % len(order)]] += bytes([at])
        client.syncing = client.sync(assignment_of)
        if assignment_of and (client.syncing.waits or client.syncing.code == 0):
            self.assignments.setdefault(client.generation, assignment_of)
        self.waiting[client.syncing] = client

    def send_as_zombie(self) -> None:
        """Send a request with the member id and generation of a former member."""
        if not self.zombies:
            return
        member_id, instance_id, generation = self.random.choice(self.zombies)
        zombie = RandomClient(self.harness, "g", self.random)
        zombie.member_id, zombie.instance_id = member_id, instance_id
        what = self.random.randrange(3)
        if what == 0 and member_id:
            self.commit_as_member(member_id, instance_id, generation)
        elif what == 1:
            zombie.beat(generation)
        elif what == 2 and self.newest not in (generation, 0):
            asked = zombie.sync({member_id: b"stolen"}, generation=generation)
            assert asked.code != 0, "a SyncGroup of an older generation succeeded"

    def commit_as_member(self, member_id: str, instance_id: str | None, generation: int) -> None:
        place = ("t", self.random.choice(PARTITIONS))
        offset = self.random.randrange(1_000)
        asked = self.harness.commit(
            GROUP,
            {place: offset},
            generation=generation,
            member_id=member_id,
            instance_id=instance_id,
        )
        if asked.code:
            return
        self.accepted += 1
        assert generation == self.newest, (
            f"{generation} committed but the newest generation is {self.newest}"
        )
        assert member_id not in self.ended, f"{member_id} committed, which had left"
        assert member_id in self.harness.member_ids(GROUP)
        self.offsets[place] = (offset, self.harness.now_ms)

    def commit_as_admin(self) -> None:
        place, empty = ("u", self.random.choice(PARTITIONS)), self.harness.state(GROUP)
        offset = self.random.randrange(1_000)
        asked = self.harness.commit(GROUP, {place: offset})
        assert (asked.code == 0) == (empty in ("Empty", "Dead") and self.harness.writable)
        if asked.code == 0:
            self.offsets[place] = (offset, self.harness.now_ms)

    def leave(self) -> None:
        client = self.random_client()
        if client.member_id:
            asked = client.leave()
            if asked.code == 0 and asked.members[0]["error_code"] == 0:
                self.ended.add(client.member_id)
            client.member_id = ""

    def remove_static_member(self) -> None:
        name = self.random.choice("abc")
        held = self.holder(f"i-{name}")
        asked = self.harness.leave(GROUP, ("", f"i-{name}"), ("nobody", None))
        if held is not None and asked.code == 0:
            self.ended.add(held)

    def kill_client(self) -> None:
        """End a process and its connections without a LeaveGroup."""
        client = self.random_client()
        for asked in [asked for asked, who in self.waiting.items() if who is client]:
            self.harness.machine.drop_token(asked)
            del self.waiting[asked]
        self.zombies.append((client.member_id, client.instance_id, client.joined_generation))
        at = self.clients.index(client)
        self.clients[at] = RandomClient(self.harness, client.name, self.random)

    def change_protocols(self) -> None:
        self.random_client().protocols = self.random.choice(PROTOCOLS)

    def delete(self) -> None:
        if self.random.random() < 0.5:
            before = self.harness.state(GROUP)
            code = self.harness.delete_groups(GROUP)[GROUP] if self.harness.writable else None
            assert code in (None, 0 if before == "Empty" else 69 if before == "Dead" else 68)
            if code == 0:
                self.offsets = {}
        else:
            place = (self.random.choice("tu"), self.random.choice(PARTITIONS))
            asked = self.harness.delete_offsets(GROUP, place)
            if asked.code == 0:
                self.offsets.pop(place, None)

    def advance_clock(self) -> None:
        self.harness.after(self.random.choice([1, 200, 500, 1_000, 1_000, 3_000]))

    def advance_clock_far(self) -> None:
        self.harness.after(
            self.random.choice([6_000, 20_000, 20_000, 700_000, RETENTION_MS + 1_000_000])
        )

    def restart(self) -> None:
        group = self.group()
        stable = group.state is GroupState.STABLE and self.harness.failed_count == self.failed_count
        if len(group.members) > self.harness.limits.max_size:
            stable = False  # absent static members exceed the limit; the group shrinks now
        before = self.harness.machine.describe(GROUP, 5)
        self.harness.restart()
        assert not stable or self.harness.machine.describe(GROUP, 5) == before
        self.waiting = {}
        for client in self.clients:
            if client.joined is not None and client.joined.waits:
                client.joined = None
            if client.syncing is not None and client.syncing.waits:
                client.joined = client.syncing = None
        # In the log a member that left stays one until the next generation is assigned.
        self.ended -= {*self.harness.member_ids(GROUP)} - self.fenced
        # A generation that was never assigned is not in the log: its number is used again.
        assert not stable or self.group().generation.generation_id == self.newest
        self.newest = self.group().generation.generation_id
        for by_generation in (self.leaders, self.assignments, self.announced_leader):
            for generation in [*by_generation]:
                if generation > self.newest:
                    del by_generation[generation]

    def toggle_writes(self) -> None:
        """Make writes fail, or succeed again."""
        self.harness.writable = self.random.random() < 0.6

    # -- responses ---------------------------------------------------------------------------

    def take_responses(self) -> None:
        """Check the responses that have arrived."""
        for each in self.harness.machine.describe(GROUP, 5)["members"]:
            self.instances[each["member_id"]] = each["group_instance_id"]
        for asked in [asked for asked in self.waiting if not asked.waits]:
            client = self.waiting.pop(asked)
            if asked.code:
                continue
            if asked.what.startswith("JoinGroup"):
                self.check_generation(asked)
            elif client is not None:
                self.check_assignment(client, asked)
        for client in self.clients:
            client.take_member_id()

    def check_generation(self, asked: GroupRequest) -> None:
        generation = asked.generation_id
        assert generation >= self.newest, "a generation went back"
        self.newest = generation
        leader = self.announced_leader.setdefault(generation, asked.leader)
        if leader != asked.leader:
            instances = {self.instances.get(each) for each in (leader, asked.leader)}
            assert len(instances) == 1 and instances != {None}, f"{generation} has two leaders"
        if not asked.members:
            return
        instances = {each["member_id"]: each["group_instance_id"] for each in asked.members}
        assert asked.leader == asked.member_id in instances
        self.leaders.setdefault(generation, (asked.leader, instances))
        assert len([each for each in instances.values() if each]) == len(
            {*instances.values()} - {None}
        )

    def check_assignment(self, client: RandomClient, asked: GroupRequest) -> None:
        assignment_of = self.assignments.get(client.joined_generation, {})
        assignment = asked.response["assignment"]
        if not assignment:
            return
        leader, instances = self.leaders[client.joined_generation]
        assert assignment in assignment_of.values(), "the assignment differs from the leader's"
        owner = next(
            member_id for member_id, content in assignment_of.items() if content == assignment
        )
        assert owner == client.member_id or instances[owner] == client.instance_id is not None
        assert leader in instances

    # -- invariants --------------------------------------------------------------------------

    def group(self) -> ClassicGroup:
        return self.harness.machine.groups.get(GROUP) or ClassicGroup(GROUP)

    def check(self) -> None:
        self.check_offsets()
        self.check_group(self.group())
        machine = self.harness.machine
        if self.group().state is not GroupState.STABLE:
            self.failed_count = self.harness.failed_count
        assert machine.groups.size == sum(group.size for group in machine.groups)
        for group in machine.groups:
            if isinstance(group, ClassicGroup):
                assert group.members.size == sum(each.total_size() for each in group.members)
        waiting = {asked for asked in self.waiting if asked.waits}
        assert waiting <= {*machine._waiting} | {token for token, _ in machine._refused} | {
            token for token, _ in (machine._unwritten.replies if machine._unwritten else ())
        }, "a request waits that the coordinator does not know"

    def check_offsets(self) -> None:
        there = self.harness.offsets(GROUP)
        for place, (offset, since_ms) in [*self.offsets.items()]:
            if place not in there:
                assert self.harness.now_ms - since_ms >= RETENTION_MS, "an offset disappeared"
                del self.offsets[place]
            else:
                assert there[place] == offset, "an offset changed"
        assert there.keys() == self.offsets.keys(), "an offset appeared"
        assert self.harness.machine.offsets.count == len(there)

    def check_group(self, group: ClassicGroup) -> None:
        members = [*group.members]
        assert group.members.joined_count == sum(m.join_token is not NO_TOKEN for m in members)
        assert group.members.size == sum(member.total_size() for member in members)
        assert group.unsynced <= {member.member_id for member in members}
        leader = group.generation.leader
        assert (leader in members) if members else (leader is None)
        if group.state is GroupState.EMPTY:
            assert not members
        deadlines = self.harness.machine._deadlines
        for member in members:
            assert member.excused or DeadlineKey(SESSION, GROUP, member.member_id) in deadlines
        for member_id in group.pending:
            assert DeadlineKey(SESSION, GROUP, member_id) in deadlines
        if group.state is GroupState.PREPARING:
            assert DeadlineKey(JOIN, GROUP) in deadlines
        if group.state is GroupState.COMPLETING or (
            group.state is GroupState.STABLE and group.unsynced
        ):
            assert DeadlineKey(SYNC, GROUP) in deadlines
        if group.state is GroupState.STABLE:
            assert not any(member.join_token is not NO_TOKEN for member in members)
            assert not any(member.sync_token is not NO_TOKEN for member in members)

    def check_replay(self) -> None:
        machine = self.harness.machine
        kept = hard_state(machine)
        assert hard_state(self.harness.replayed(self.harness.read_log())) == kept
        last = [group_records.read(*entry) for entry in dict(self.harness.log).items()]
        assert hard_state(self.harness.replayed(last)) == kept

    def end(self) -> None:
        """Stop all clients; every request gets a response, and then the group is empty."""
        self.check_replay()
        self.harness.writable = True
        self.harness.after(3_600_000)
        self.take_responses()
        pending = [asked for asked in self.waiting if asked.waits]
        assert not pending, f"no response: {pending}"
        assert self.harness.state(GROUP) in ("Empty", "Dead")
        self.harness.after(2 * RETENTION_MS)
        machine = self.harness.machine
        assert (len(machine.groups), machine.groups.size, machine._waiting) == (0, 0, {})
        assert machine.offsets.size == machine.offsets.count == 0
        self.check_replay()


def hard_state(machine: Any) -> Any:
    groups = [(group.group_id, group) for group in machine.groups]
    recorded = {id_: group.recorded for id_, group in groups if group.recorded is not None}
    return recorded, machine.offsets._groups
