"""Random lives of a group: members, zombie members, admins, a clock, a log, restarts.

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

from kafkalite.coordination.classic_group import ClassicGroup
from kafkalite.coordination.decision_draft import JOIN, NO_TOKEN, SESSION, SYNC, DeadlineKey
from kafkalite.coordination.group_members import GroupState
from tests.coordination.groups import RETENTION_MS, Asked, Client, Stage, subscription

PARTITIONS = range(12)
GROUP = "g"
SPOKEN = [
    {"range": subscription("t"), "sticky": subscription("t")},
    {"sticky": subscription("t"), "range": subscription("t")},
    {"range": subscription("t", "u")},
    {"range": b"\xff", "sticky": b""},
]


class Person(Client):
    """A client that takes random steps, and the responses it has received."""

    def __init__(self, stage: Stage, name: str, dice: random.Random) -> None:
        super().__init__(
            stage,
            name,
            instance_id=f"i-{name[0]}" if name < "d" else None,
            protocols=dice.choice(SPOKEN),
            session_ms=dice.choice([6_000, 10_000, 45_000]),
            rebalance_ms=dice.choice([5_000, 20_000]),
            version=dice.choice([5, 9]) if name < "d" else dice.choice([3, 5, 9]),
        )
        self.syncing: Asked | None = None
        self.told = 0
        """The generation in the last successful JoinGroup response."""
        self.owns: frozenset[int] = frozenset()

    def hear(self) -> None:
        super().hear()
        if self.joined is not None and not self.joined.waits and self.joined.code == 0:
            self.told = self.joined.generation_id


class World:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.stage = Stage(
            max_size=self.dice.choice([4, 100]),
            initial_rebalance_delay_ms=self.dice.choice([0, 0, 3_000]),
        )
        self.people = [
            Person(self.stage, name, self.dice) for name in "adbefcg"[: self.dice.randrange(2, 8)]
        ]
        self.zombies: list[tuple[str, str | None, int]] = []
        self.waiting: dict[Asked, Person | None] = {}
        self.ended: set[str] = set()
        """Ids of members that left or were replaced by another process."""
        self.leaders: dict[int, Any] = {}
        """The leader and its list of members, (id, instance id), by generation."""
        self.given: dict[int, dict[str, bytes]] = {}
        self.newest = 0
        self.fenced: set[str] = set()
        """Those of `ended` that a record has removed from the group."""
        self.instances: dict[str, str | None] = {}
        """Instance ids by member id."""
        self.told_leader: dict[int, str] = {}
        self.failed_count = 0
        """Number of failed writes when the group was last seen in another state than Stable."""
        self.offsets: dict[tuple[str, int], tuple[int, int]] = {}
        """The last committed offset and its time, by partition."""
        self.accepted = 0

    # -- events ------------------------------------------------------------------------------

    def live(self, steps: int) -> None:
        happenings = [
            (self.rebalance_after_leave, 60),
            (self.join_again, 1),
            (self.leave, 0.5),
            (self.die, 0.5),
            (self.change, 0.5),
            (self.haunt, 5),
            (self.commit_as_admin, 1),
            (self.put_out, 0.3),
            (self.delete, 1),
            (self.pause, 10),
            (self.pause_for_long, 0.5),
            (self.restart, 0.5),
            (self.fail_to_write, 1),
        ]
        weights = [weight for _, weight in happenings]
        for _ in range(steps):
            happening = self.dice.choices(happenings, weights)[0][0]
            happening()
            self.listen()
            if GROUP not in self.stage.machine._groups:
                # The group was deleted, and with it its generation counter.
                self.newest, self.leaders, self.given, self.told_leader = 0, {}, {}, {}
            self.check()
        self.end()

    def somebody(self) -> Person:
        return self.dice.choice(self.people)

    def rebalance_after_leave(self) -> None:
        """Have a random client send its next request."""
        person = self.somebody()
        if person.joined is None:
            self.join(person)
        elif person.joined.waits or (person.syncing is not None and person.syncing.waits):
            return
        elif person.joined.code:
            self.hear_refusal(person, person.joined)
        elif person.syncing is None:
            self.sync(person)
        elif person.syncing.code:
            self.hear_refusal(person, person.syncing)
        elif self.dice.random() < 0.5:
            self.hear_refusal(person, person.beat(person.told))
        else:
            self.try_to_commit(person.member_id, person.instance_id, person.told)

    def hear_refusal(self, person: Person, asked: Asked) -> None:
        """Handle an error as a client does: join again, with the member id if it is still valid."""
        assert not asked.waits
        if asked.code == 79:
            person.member_id = asked.member_id
        elif asked.code in (25, 81, 82):
            person.member_id = ""
        if asked.code:
            person.joined = person.syncing = None

    def join_again(self) -> None:
        self.join(self.somebody())

    def join(self, person: Person) -> None:
        self.zombies.append((person.member_id, person.instance_id, person.told))
        before = self.holder(person.instance_id)
        asked = person.ask_to_join()
        self.waiting[asked] = person
        person.syncing = None
        holder = self.holder(person.instance_id)
        if before is not None and holder != before:
            self.ended.add(before)
            if not asked.waits and asked.code == 0:
                self.fenced.add(before)

    def holder(self, instance_id: str | None) -> str | None:
        """Return the member id of an instance id, as an admin sees it."""
        members = self.stage.machine.describe(GROUP, 5)["members"]
        ids = [each["member_id"] for each in members if each["group_instance_id"] == instance_id]
        return ids[0] if instance_id is not None and ids else None

    def sync(self, person: Person) -> None:
        assert person.joined is not None
        members = person.joined.members
        given: dict[str, bytes] = {}
        if members and not person.joined.skip_assignment:
            order = [each["member_id"] for each in members]
            for at in PARTITIONS:
                given.setdefault(order[at % len(order)], b"")
                given[order[at % len(order)]] += bytes([at])
        person.syncing = person.sync(given)
        if given and (person.syncing.waits or person.syncing.code == 0):
            self.given.setdefault(person.generation, given)
        self.waiting[person.syncing] = person

    def haunt(self) -> None:
        """Send a request with the member id and generation of a former member."""
        if not self.zombies:
            return
        member_id, instance_id, generation = self.dice.choice(self.zombies)
        ghost = Person(self.stage, "g", self.dice)
        ghost.member_id, ghost.instance_id = member_id, instance_id
        what = self.dice.randrange(3)
        if what == 0 and member_id:
            self.try_to_commit(member_id, instance_id, generation)
        elif what == 1:
            ghost.beat(generation)
        elif what == 2 and self.newest not in (generation, 0):
            asked = ghost.sync({member_id: b"stolen"}, generation=generation)
            assert asked.code != 0, "somebody synced in a generation that has passed"

    def try_to_commit(self, member_id: str, instance_id: str | None, generation: int) -> None:
        place = ("t", self.dice.choice(PARTITIONS))
        offset = self.dice.randrange(1_000)
        asked = self.stage.commit(
            GROUP,
            {place: offset},
            generation=generation,
            member_id=member_id,
            instance_id=instance_id,
        )
        if asked.code:
            return
        self.accepted += 1
        assert generation == self.newest, f"{generation} committed and {self.newest} is told"
        assert member_id not in self.ended, f"{member_id} committed, whose time has ended"
        assert member_id in self.stage.member_ids(GROUP)
        self.offsets[place] = (offset, self.stage.now_ms)

    def commit_as_admin(self) -> None:
        place, empty = ("u", self.dice.choice(PARTITIONS)), self.stage.state(GROUP)
        offset = self.dice.randrange(1_000)
        asked = self.stage.commit(GROUP, {place: offset})
        assert (asked.code == 0) == (empty in ("Empty", "Dead") and self.stage.writable)
        if asked.code == 0:
            self.offsets[place] = (offset, self.stage.now_ms)

    def leave(self) -> None:
        person = self.somebody()
        if person.member_id:
            asked = person.leave()
            if asked.code == 0 and asked.members[0]["error_code"] == 0:
                self.ended.add(person.member_id)
            person.member_id = ""

    def put_out(self) -> None:
        name = self.dice.choice("abc")
        held = self.holder(f"i-{name}")
        asked = self.stage.leave(GROUP, ("", f"i-{name}"), ("nobody", None))
        if held is not None and asked.code == 0:
            self.ended.add(held)

    def die(self) -> None:
        """End a process and its connections without a LeaveGroup."""
        person = self.somebody()
        for asked in [asked for asked, who in self.waiting.items() if who is person]:
            self.stage.machine.forget(asked)
            del self.waiting[asked]
        self.zombies.append((person.member_id, person.instance_id, person.told))
        at = self.people.index(person)
        self.people[at] = Person(self.stage, person.name, self.dice)

    def change(self) -> None:
        self.somebody().protocols = self.dice.choice(SPOKEN)

    def delete(self) -> None:
        if self.dice.random() < 0.5:
            before = self.stage.state(GROUP)
            code = self.stage.delete_groups(GROUP)[GROUP] if self.stage.writable else None
            assert code in (None, 0 if before == "Empty" else 69 if before == "Dead" else 68)
            if code == 0:
                self.offsets = {}
        else:
            place = (self.dice.choice("tu"), self.dice.choice(PARTITIONS))
            asked = self.stage.delete_offsets(GROUP, place)
            if asked.code == 0:
                self.offsets.pop(place, None)

    def pause(self) -> None:
        self.stage.after(self.dice.choice([1, 200, 500, 1_000, 1_000, 3_000]))

    def pause_for_long(self) -> None:
        self.stage.after(
            self.dice.choice([6_000, 20_000, 20_000, 700_000, RETENTION_MS + 1_000_000])
        )

    def restart(self) -> None:
        group = self.group()
        stable = group.state is GroupState.STABLE and self.stage.failed_count == self.failed_count
        if len(group.members) > self.stage.limits.max_size:
            stable = False  # absent static members exceed the limit; the group shrinks now
        before = self.stage.machine.describe(GROUP, 5)
        self.stage.restart()
        assert not stable or self.stage.machine.describe(GROUP, 5) == before
        self.waiting = {}
        for person in self.people:
            if person.joined is not None and person.joined.waits:
                person.joined = None
            if person.syncing is not None and person.syncing.waits:
                person.joined = person.syncing = None
        # In the log a member that left stays one until the next generation is assigned.
        self.ended -= {*self.stage.member_ids(GROUP)} - self.fenced
        # A generation that was never assigned is not in the log: its number is used again.
        assert not stable or self.group().generation == self.newest
        self.newest = self.group().generation
        for told in (self.leaders, self.given, self.told_leader):
            for generation in [*told]:
                if generation > self.newest:
                    del told[generation]

    def fail_to_write(self) -> None:
        """Make writes fail, or succeed again."""
        self.stage.writable = self.dice.random() < 0.6

    # -- responses ---------------------------------------------------------------------------

    def listen(self) -> None:
        """Check the responses that have arrived."""
        for each in self.stage.machine.describe(GROUP, 5)["members"]:
            self.instances[each["member_id"]] = each["group_instance_id"]
        for asked in [asked for asked in self.waiting if not asked.waits]:
            person = self.waiting.pop(asked)
            if asked.code:
                continue
            if asked.what.startswith("JoinGroup"):
                self.heard_of_generation(asked)
            elif person is not None:
                self.heard_of_assignment(person, asked)
        for person in self.people:
            person.hear()

    def heard_of_generation(self, asked: Asked) -> None:
        generation = asked.generation_id
        assert generation >= self.newest, "a generation that has passed was told"
        self.newest = generation
        leader = self.told_leader.setdefault(generation, asked.leader)
        if leader != asked.leader:
            instances = {self.instances.get(each) for each in (leader, asked.leader)}
            assert len(instances) == 1 and instances != {None}, f"{generation} has two leaders"
        if not asked.members:
            return
        told = {each["member_id"]: each["group_instance_id"] for each in asked.members}
        assert asked.leader == asked.member_id in told
        self.leaders.setdefault(generation, (asked.leader, told))
        assert len([each for each in told.values() if each]) == len({*told.values()} - {None})

    def heard_of_assignment(self, person: Person, asked: Asked) -> None:
        given = self.given.get(person.told, {})
        assignment = asked.response["assignment"]
        if not assignment:
            return
        leader, told = self.leaders[person.told]
        assert assignment in given.values(), "what was assigned is not what the leader assigned"
        owner = next(who for who, what in given.items() if what == assignment)
        assert owner == person.member_id or told[owner] == person.instance_id is not None
        assert leader in told

    # -- invariants --------------------------------------------------------------------------

    def group(self) -> ClassicGroup:
        return self.stage.machine._groups.get(GROUP) or ClassicGroup(GROUP)

    def check(self) -> None:
        self.check_offsets()
        self.check_group(self.group())
        machine = self.stage.machine
        if self.group().state is not GroupState.STABLE:
            self.failed_count = self.stage.failed_count
        assert machine._size == sum(group.size for group in machine._groups.values())
        waiting = {asked for asked in self.waiting if asked.waits}
        assert waiting <= {*machine._waiting} | {token for token, _ in machine._refused} | {
            token for token, _ in (machine._unwritten.replies if machine._unwritten else ())
        }, "somebody waits of whom nobody knows"

    def check_offsets(self) -> None:
        there = self.stage.offsets(GROUP)
        for place, (offset, since_ms) in [*self.offsets.items()]:
            if place not in there:
                assert self.stage.now_ms - since_ms >= RETENTION_MS, "an offset went by itself"
                del self.offsets[place]
            else:
                assert there[place] == offset, "an offset changed by itself"
        assert there.keys() == self.offsets.keys(), "an offset came by itself"
        assert self.stage.machine.offsets.count == len(there)

    def check_group(self, group: ClassicGroup) -> None:
        members = [*group.members]
        assert group.members.joined_count == sum(m.join_token is not NO_TOKEN for m in members)
        assert group.members.size == sum(member.total_size() for member in members)
        assert group.unsynced <= {member.member_id for member in members}
        assert (group.leader in members) if members else (group.leader is None)
        if group.state is GroupState.EMPTY:
            assert not members
        deadlines = self.stage.machine._deadlines
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
        machine = self.stage.machine
        kept = hard_state(machine)
        assert hard_state(self.stage.replayed(self.stage.read_log())) == kept
        assert hard_state(self.stage.replayed(machine.records())) == kept

    def end(self) -> None:
        """Stop all clients; every request gets a response, and then the group is empty."""
        self.check_replay()
        self.stage.writable = True
        self.stage.after(3_600_000)
        self.listen()
        unanswered = [asked for asked in self.waiting if asked.waits]
        assert not unanswered, f"never answered: {unanswered}"
        assert self.stage.state(GROUP) in ("Empty", "Dead")
        self.stage.after(2 * RETENTION_MS)
        machine = self.stage.machine
        assert (machine._groups, machine._size, machine._waiting) == ({}, 0, {})
        assert machine.offsets.size == machine.offsets.count == 0
        self.check_replay()


def hard_state(machine: Any) -> Any:
    kept = {id_: group.kept for id_, group in machine._groups.items() if group.kept is not None}
    return kept, machine.offsets._groups
