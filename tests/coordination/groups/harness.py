"""A group coordinator without a broker: a host that writes and replays, clients, and a clock.

Every record is encoded and decoded again.  No request gets two responses, and none is unsolicited.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

from kafkalite.coordination.groups.assignment.assignors import ASSIGNORS
from kafkalite.coordination.groups.assignment.subscribed_topics import KnownTopic
from kafkalite.coordination.groups.classic.initial_rebalance import STATIC_GATHER_MS
from kafkalite.coordination.groups.group_coordinator import (
    CommittedOffset,
    Decision,
    GroupClient,
    GroupCoordinator,
    OffsetToCommit,
)
from kafkalite.coordination.groups.group_limits import GroupLimits
from kafkalite.coordination.groups.group_settings import ConsumerGroupSettings
from kafkalite.coordination.groups.offsets.committed_offsets import UNSTABLE
from kafkalite.coordination.machine import TransactionalRecord, TransactionEnd
from kafkalite.coordination.steps import result_of
from kafkalite.errors import KafkaError, KafkaStorageError
from kafkalite.ids import NO_ID
from kafkalite.protocol.schema import Api, Fields
from kafkalite.protocol.schemas import group_records
from kafkalite.protocol.schemas.groups import (
    HEARTBEAT,
    JOIN_GROUP,
    OFFSET_COMMIT,
    SYNC_GROUP,
)
from kafkalite.protocol.schemas.transactions import TXN_OFFSET_COMMIT

SESSION_MS = 10_000
REBALANCE_MS = 60_000
RETENTION_MS = 7 * 24 * 3_600_000
CHECK_MS = 600_000
WALL_MS = 1_700_000_000_000
"""The wall clock when the monotonic clock is 0."""

TICKS_MAX = 50
"""Limit of timer rounds at one moment."""

LIMITS = GroupLimits(
    min_session_ms=6_000,
    max_session_ms=1_800_000,
    initial_rebalance_delay_ms=0,
    max_size=1_000,
    metadata_size_max=4_096,
    retention_ms=RETENTION_MS,
    retention_check_ms=CHECK_MS,
    consumer_max_size=1_000,
    consumer_assignors=ASSIGNORS,
    migration_policy="bidirectional",
    pattern_refresh_ms=600_000,
)


def coordinator(limits: GroupLimits) -> GroupCoordinator:
    """Return a coordinator of a cluster without topics."""
    settings = ConsumerGroupSettings()
    return GroupCoordinator(
        limits, lambda beginning: beginning, ManualTopics(), lambda group_id: settings
    )


def read_as(api: Api, version: int, **fields: Any) -> Fields:
    """Return a request as decoded from its bytes."""
    return api.request.read(version, api.request.write(version, fields))


def subscription(*topics: str, version: int = 0, rest: bytes = bytes(4)) -> bytes:
    """Return a consumer's subscription metadata."""
    named = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return version.to_bytes(2, "big") + len(topics).to_bytes(4, "big") + named + rest


class GroupRequest:
    """A request and its response, if there is one; it serves as its own token."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.response: Any = None
        self.fault: KafkaError | None = None

    def __repr__(self) -> str:
        return f"{self.what}: {self.response if self.fault is None else self.fault!r}"

    @property
    def waits(self) -> bool:
        return self.response is None and self.fault is None

    @property
    def code(self) -> int:
        assert not self.waits, f"{self.what} is not answered"
        if self.fault is not None:
            return self.fault.code
        if "codes" in self.response:
            return max(self.response["codes"].values(), default=0)
        return int(self.response["error_code"])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        assert self.response is not None, f"{self} has no response"
        return self.response[name]


class ManualTopics:
    """The topics that a test has created."""

    def __init__(self, **partition_counts: int) -> None:
        self._by_name: dict[str, KnownTopic] = {}
        self._ids = count(1)
        for name, partition_count in partition_counts.items():
            self.create(name, partition_count)

    def create(self, name: str, partition_count: int) -> bytes:
        """Create a topic, or one in place of it; return its id."""
        topic_id = next(self._ids).to_bytes(16, "big")
        self._by_name[name] = KnownTopic(name, topic_id, partition_count)
        return topic_id

    def grow(self, name: str, partition_count: int) -> None:
        """Add partitions to a topic."""
        self._by_name[name] = self._by_name[name]._replace(partition_count=partition_count)

    def delete(self, name: str) -> None:
        """Delete a topic."""
        del self._by_name[name]

    def topic(self, name: str) -> KnownTopic | None:
        return self._by_name.get(name)

    def topic_by_id(self, topic_id: bytes) -> KnownTopic | None:
        return next((each for each in self._by_name.values() if each.topic_id == topic_id), None)


class GroupHarness:
    """See the module."""

    def __init__(self, **limits: Any) -> None:
        self.now_ms = 0
        self.log: list[tuple[bytes, bytes | None]] = []
        self.transactional: dict[int, TransactionalRecord | TransactionEnd] = {}
        """The transactional records and ends of transactions in the log, by index."""
        self.writable = True
        self.failed_count = 0
        self.limits = LIMITS._replace(**limits)
        self.topics = ManualTopics()
        self.settings = ConsumerGroupSettings()
        self._ids = count(1)
        self.machine = self._machine()
        self.machine.loaded(0)

    def _machine(self) -> GroupCoordinator:
        return GroupCoordinator(
            self.limits,
            lambda beginning: f"{beginning}-{next(self._ids)}",
            self.topics,
            lambda group_id: self.settings,
        )

    @property
    def wall_ms(self) -> int:
        return WALL_MS + self.now_ms

    # -- the host ----------------------------------------------------------------------------

    def decide(self, what: str, decide: Any) -> GroupRequest:
        asked = GroupRequest(what)
        try:
            result = decide(asked)
        except KafkaError as fault:
            asked.fault = fault
            return asked
        if not self.take(result):
            asked.fault = KafkaStorageError("It cannot be written.")
        return asked

    def take(self, result: Decision) -> bool:
        """Write and replay the records, complete the responses; return False if writing fails."""
        if result.records and not self.writable:
            self.failed_count += 1
            return False
        for record in result.records:
            transactional = None
            if isinstance(record, TransactionalRecord):
                transactional, record = record, record.record
                self.transactional[len(self.log)] = transactional
            key, value = group_records.write(record)
            again = group_records.read(key, value)
            assert again == record
            self.log.append((key, value))
            self.machine.replay(again if transactional is None else transactional)
        for asked, response in result.response:
            assert asked.fault is not None or asked.response is None, f"{asked} is answered twice"
            asked.response = response
        return True

    def at(self, now_ms: int) -> None:
        """Advance the clock to `now_ms`, running every timer when it is due."""
        assert now_ms >= self.now_ms
        ticks = 0
        while (due_ms := self.machine.next_due_ms) is not None and due_ms <= now_ms:
            ticks = ticks + 1 if due_ms <= self.now_ms else 0
            assert ticks < TICKS_MAX, "it is never done"
            self.now_ms = max(self.now_ms, due_ms)
            self.take(self.machine.tick(self.now_ms, self.wall_ms))
        self.now_ms = now_ms

    def after(self, wait_ms: int) -> None:
        self.at(self.now_ms + wait_ms)

    def replayed(self, records: Iterable[Any]) -> GroupCoordinator:
        machine = self._machine()
        for record in records:
            machine.replay(record)
        return machine

    def restart(self) -> None:
        """Replace the coordinator by one that replays the log; waiting requests are lost."""
        self.machine = self.replayed(self.read_log())
        self.machine.loaded(self.now_ms)

    def read_log(self) -> list[Any]:
        return [
            self.transactional.get(at) or group_records.read(*entry)
            for at, entry in enumerate(self.log)
        ]

    # -- requests ----------------------------------------------------------------------------

    def leave(self, group_id: str, *members: tuple[str, str | None]) -> GroupRequest:
        return self.decide(
            f"LeaveGroup {group_id}",
            lambda token: self.machine.leave(
                group_id, [(*each, None) for each in members], token, self.now_ms, self.wall_ms
            ),
        )

    def commit(
        self,
        group_id: str,
        offsets: Mapping[tuple[str, int], int],
        *,
        generation: int = -1,
        member_id: str = "",
        instance_id: str | None = None,
        metadata: str = "",
        topic_id: bytes = NO_ID,
        version: int = 9,
        **options: Any,
    ) -> GroupRequest:
        request = read_as(
            OFFSET_COMMIT,
            version,
            group_id=group_id,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            **({} if instance_id is None else {"group_instance_id": instance_id}),
            **options,
        )
        commits = [
            OffsetToCommit(topic, index, offset, 0 if version > 5 else -1, metadata, topic_id)
            for (topic, index), offset in offsets.items()
        ]
        return self.decide(
            f"OffsetCommit {group_id}",
            lambda token: self.machine.commit_offsets(
                request, commits, token, self.now_ms, self.wall_ms, version
            ),
        )

    def commit_as(self, client: Client, offsets: Mapping[tuple[str, int], int]) -> GroupRequest:
        return self.commit(
            client.group_id, offsets, generation=client.generation, member_id=client.member_id
        )

    def commit_in_transaction(
        self,
        group_id: str,
        offsets: Mapping[tuple[str, int], int],
        producer_id: int = 1,
        *,
        generation: int = -1,
        member_id: str = "",
        instance_id: str | None = None,
        metadata: str = "",
        topic_id: bytes = NO_ID,
        version: int = 5,
    ) -> GroupRequest:
        request = read_as(
            TXN_OFFSET_COMMIT,
            5,
            transactional_id="id",
            group_id=group_id,
            producer_id=producer_id,
            producer_epoch=0,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance_id,
        )
        commits = [
            OffsetToCommit(topic, index, offset, 0, metadata, topic_id)
            for (topic, index), offset in offsets.items()
        ]
        return self.decide(
            f"TxnOffsetCommit {group_id}",
            lambda token: self.machine.commit_transactional_offsets(
                request, commits, token, self.now_ms, self.wall_ms, version
            ),
        )

    def end_transaction(self, producer_id: int = 1, *, is_commit: bool = True) -> None:
        end = TransactionEnd(producer_id, is_commit)
        self.transactional[len(self.log)] = end
        self.log.append((b"", None))
        self.machine.replay(end)

    def unstable(self, group_id: str, *places: tuple[str, int]) -> list[tuple[str, int]]:
        """Return the partitions among these that a client which requires a stable offset gets
        none of."""
        wanted: dict[str, list[int]] = {}
        for topic, index in places:
            wanted.setdefault(topic, []).append(index)
        found = self.machine.fetch_offsets(group_id, wanted, require_stable=True)
        return [
            (topic, at) for topic, by in found.items() for at, each in by.items()
            if each is UNSTABLE
        ]  # fmt: skip

    def delete_offsets(self, group_id: str, *places: tuple[str, int]) -> GroupRequest:
        return self.decide(
            f"OffsetDelete {group_id}",
            lambda token: self.machine.delete_offsets(group_id, places, token, self.now_ms),
        )

    def delete_groups(self, *group_ids: str) -> dict[str, int]:
        """Delete groups; return the error code of each."""
        asked = self.decide(
            "DeleteGroups",
            lambda token: self.machine.delete_groups(group_ids, token, self.now_ms),
        )
        return {
            group_id: 0 if fault is None else fault.code
            for group_id, fault in asked.response.items()
        }

    def offsets(self, group_id: str) -> dict[tuple[str, int], int]:
        return {place: each.offset for place, each in self.committed(group_id).items()}

    def committed(self, group_id: str) -> dict[tuple[str, int], CommittedOffset]:
        found = self.machine.fetch_offsets(group_id, None)
        return {(topic, at): each for topic, by in found.items() for at, each in by.items()}

    def state(self, group_id: str = "g") -> str:
        return str(self.machine.describe(group_id, 5)["group_state"])

    def described(self, group_id: str = "g") -> dict[str, Any]:
        """Return a consumer group as in a ConsumerGroupDescribe response."""
        return result_of(self.machine.describe_consumer(group_id))

    def member_ids(self, group_id: str = "g") -> list[str]:
        return [each["member_id"] for each in self.machine.describe(group_id, 5)["members"]]

    # -- shortcuts ---------------------------------------------------------------------------

    def client(self, name: str = "c", **options: Any) -> Client:
        return Client(self, name, **options)

    def stable(self, *clients: Client) -> None:
        """Have these clients join the group and sync, each assigned its own name."""
        self.joined(*clients)
        self.sync(*clients)

    def joined(self, *clients: Client) -> None:
        """Have these clients join; those of an earlier generation rejoin."""
        for client in clients:
            client.join()
        for client in clients:
            assert client.joined is not None
            if self.state(client.group_id) == "PreparingRebalance" and not client.joined.waits:
                client.join()
        while any(client.joined is not None and client.joined.waits for client in clients):
            self.after(STATIC_GATHER_MS)
        for client in clients:
            client.take_member_id()

    def sync(self, *clients: Client) -> None:
        """Have all of them sync, the leader last."""
        leader = next(client for client in clients if client.leads)
        others = [client for client in clients if client is not leader]
        asked = [client.sync() for client in others]
        asked.append(leader.sync({each.member_id: each.name.encode() for each in clients}))
        assert [each.code for each in asked] == [0] * len(asked), asked


class Client:
    """A client of a group; it keeps its member id and its last JoinGroup request."""

    def __init__(
        self,
        harness: GroupHarness,
        name: str,
        *,
        group_id: str = "g",
        instance_id: str | None = None,
        protocols: Mapping[str, bytes] | None = None,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        version: int = 9,
    ) -> None:
        self.harness = harness
        self.name = name
        self.group_id = group_id
        self.instance_id = instance_id
        self.protocols = protocols or {"range": subscription("t")}
        self.protocol_type = protocol_type
        self.session_ms = session_ms
        self.rebalance_ms = rebalance_ms
        self.version = version
        self.member_id = ""
        self.joined: GroupRequest | None = None

    def send_join(self) -> GroupRequest:
        """Send one JoinGroup with the current member id."""
        static = {} if self.instance_id is None else {"group_instance_id": self.instance_id}
        request = read_as(
            JOIN_GROUP,
            self.version,
            group_id=self.group_id,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=self.rebalance_ms,
            member_id=self.member_id,
            protocol_type=self.protocol_type,
            protocols=[{"name": n, "metadata": m} for n, m in self.protocols.items()],
            **static,
        )
        self.joined = self.harness.decide(
            f"JoinGroup {self.name}",
            lambda token: self.harness.machine.join(
                self.group_id,
                request,
                GroupClient(self.name, "/127.0.0.1"),
                self.version,
                token,
                self.harness.now_ms,
                self.harness.wall_ms,
            ),
        )
        return self.joined

    def join(self) -> GroupRequest:
        """Join as clients do: a second time if the first response only brings a member id."""
        asked = self.send_join()
        if not asked.waits and asked.code == 79:
            self.member_id = asked.member_id
            asked = self.send_join()
        self.take_member_id()
        return asked

    def take_member_id(self) -> None:
        """Take the member id from a successful response."""
        if self.joined is not None and not self.joined.waits and self.joined.code == 0:
            self.member_id = self.joined.member_id

    @property
    def generation(self) -> int:
        assert self.joined is not None
        return int(self.joined.generation_id)

    @property
    def leads(self) -> bool:
        assert self.joined is not None
        self.take_member_id()
        return bool(self.joined.leader == self.member_id)

    def sync(
        self, assignments: Mapping[str, bytes] | None = None, *, generation: int | None = None,
        **options: Any,
    ) -> GroupRequest:  # fmt: skip
        self.take_member_id()
        given = (assignments or {}).items()
        request = read_as(
            SYNC_GROUP,
            5,
            group_id=self.group_id,
            generation_id=self.generation if generation is None else generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            assignments=[{"member_id": to, "assignment": what} for to, what in given],
            **options,
        )
        return self.harness.decide(
            f"SyncGroup {self.name}",
            lambda token: self.harness.machine.sync(
                request, 5, token, self.harness.now_ms, self.harness.wall_ms
            ),
        )

    def beat(self, generation: int | None = None) -> GroupRequest:
        self.take_member_id()
        request = read_as(
            HEARTBEAT,
            4,
            group_id=self.group_id,
            generation_id=self.generation if generation is None else generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        return self.harness.decide(
            f"Heartbeat {self.name}",
            lambda token: self.harness.machine.heartbeat(request, token, self.harness.now_ms),
        )

    def commit(self, offset: int, generation: int | None = None, **options: Any) -> GroupRequest:
        self.take_member_id()
        return self.harness.commit(
            self.group_id,
            {("t", 0): offset},
            generation=self.generation if generation is None else generation,
            member_id=self.member_id,
            instance_id=self.instance_id,
            **options,
        )

    def leave(self) -> GroupRequest:
        return self.harness.leave(self.group_id, (self.member_id, self.instance_id))


def forget_topics(harness: GroupHarness, *names: str) -> Any:
    """Have the coordinator remove the offsets of topics, for any topic id, in one part."""
    found = harness.machine.topic_deletions(dict.fromkeys(names, [NO_ID]))
    tombstones = [record for record in found if record is not None]
    return harness.machine.write_deletions(tombstones, harness.now_ms)
