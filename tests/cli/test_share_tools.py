"""The tools of share groups: their flags, what they print, and how records are acknowledged."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from confluent_kafka import AcknowledgeType

from kafkalite.cli import share_member
from kafkalite.cli.share_member import ShareMember
from kafkalite.cli.shell_tools import groups, share_groups, start
from kafkalite.cli.shell_tools.console_share_consumer import print_batch
from kafkalite.cli.shell_tools.flags import parse
from kafkalite.cli.shell_tools.record_lines import default
from kafkalite.cli.wire import UnsupportedRequest
from kafkalite.client import (
    GroupDescription,
    GroupListing,
    MemberDescription,
    ShareOffset,
)
from kafkalite.client.net.topology import TopicPartition
from kafkalite.errors import (
    GroupIdNotFound,
    InvalidGroupId,
    NonEmptyGroup,
    Refusal,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
NUMBER = {"value.deserializer": "ShortDeserializer"}


class FakeMessage:
    """A record of one field."""

    def __init__(self, value: bytes) -> None:
        self.content = value

    def value(self) -> bytes:
        return self.content

    def error(self) -> None:
        return None


class FakeShareConsumer:
    """A consumer that has prepared records, and keeps the acknowledgements."""

    def __init__(self, settings) -> None:
        self.settings = settings
        self.received: list[list[FakeMessage]] = []
        self.acknowledged: list[tuple[bytes, AcknowledgeType]] = []
        self.closed = False

    def set_acknowledgement_commit_callback(self, callback) -> None: ...

    def subscribe(self, topics) -> None: ...

    def commit_async(self) -> None: ...

    def poll(self, timeout_s):
        return self.received.pop(0) if self.received else []

    def acknowledge(self, message, outcome) -> None:
        self.acknowledged.append((message.value(), outcome))

    def close(self) -> None:
        self.closed = True


class FakeCluster:
    bootstrap = "127.0.0.1:9092"

    def __init__(self, security: str = "plaintext") -> None:
        self.properties = {"security.protocol": security}

    def settings(self, settings):
        return settings

    def connected_admin(self) -> None: ...

    def topic(self, admin, name) -> None: ...


def messages(*values: bytes) -> list[FakeMessage]:
    return [FakeMessage(value) for value in values]


class FakeWire:
    """A broker that responds to ShareGroupDescribe with this error code; None: unsupported."""

    def __init__(self, code: int | None) -> None:
        self.code = code

    def __call__(self, cluster):
        return self

    def request(self, api, request):
        if self.code is None:
            raise UnsupportedRequest("not supported")
        return SimpleNamespace(groups=[SimpleNamespace(error_code=self.code)])


@pytest.fixture
def member(monkeypatch):
    """A member whose consumer has two batches of records."""
    monkeypatch.setattr(share_member, "ShareConsumer", FakeShareConsumer)
    monkeypatch.setattr(share_member, "WireClient", FakeWire(InvalidGroupId.code))
    found = ShareMember(FakeCluster(), "workers", ["jobs"])
    found.consumer.received = [messages(b"00", b"01", b"02"), messages(b"03", b"04")]
    return found


@pytest.mark.parametrize("code", [None, UnsupportedVersion.code])
def test_cluster_without_share_groups_is_refused(member, monkeypatch, code):
    monkeypatch.setattr(share_member, "WireClient", FakeWire(code))
    with pytest.raises(Refusal, match="share.version is not enabled"), member:
        pass
    member.cluster = FakeCluster("ssl")  # the native client cannot tell
    with member:
        pass


def test_member_accepts_what_is_processed_and_releases_the_surplus(member):
    with member:
        found = [[each.value() for each in batch] for batch in member.batches(count=4)]
    assert found == [[b"00", b"01", b"02"], [b"03"]]
    assert member.consumer.acknowledged == [
        *((value, ACCEPT) for value in (b"00", b"01", b"02", b"03")),
        (b"04", RELEASE),
    ]
    assert member.consumer.closed


def test_member_without_records_ends_after_the_timeout(member):
    with member:
        assert len(list(member.batches(count=None, idle_timeout_s=0.001))) == 2


def test_failure_releases_what_was_not_processed(member):
    with pytest.raises(Refusal), member:
        for batch in member.batches(count=None):
            member.processed(1, REJECT)
            raise Refusal(f"{len(batch)} records")
    assert member.consumer.acknowledged == [(b"00", REJECT), (b"01", RELEASE), (b"02", RELEASE)]


def acknowledged_after(member, is_rejecting, capfdbinary):
    member.consumer.received = [messages(b"\0\1", b"bad", b"\0\2")]
    lines = default(NUMBER)
    with member:
        for batch in member.batches(count=3):
            print_batch(member, batch, lines, is_rejecting)
    return capfdbinary.readouterr()


def test_record_that_cannot_be_printed_is_rejected(member, capfdbinary):
    result = acknowledged_after(member, True, capfdbinary)
    assert result.out == b"1\n2\n"
    assert b"record rejected: ShortDeserializer requires 2 bytes" in result.err
    outcomes = [outcome for _, outcome in member.consumer.acknowledged]
    assert outcomes == [ACCEPT, REJECT, ACCEPT]


def test_printed_records_are_accepted_and_the_surplus_is_released(member, capfdbinary):
    member.consumer.received = [messages(b"a", b"b", b"c", b"d")]
    with member:
        for batch in member.batches(count=1):
            print_batch(member, batch, default({}), False)
    assert capfdbinary.readouterr().out == b"a\n"
    assert member.consumer.acknowledged == [
        (b"a", ACCEPT), (b"b", RELEASE), (b"c", RELEASE), (b"d", RELEASE),
    ]  # fmt: skip


def test_record_that_cannot_be_printed_ends_the_consumer(member, capfdbinary):
    with pytest.raises(Refusal, match="requires 2 bytes"):
        acknowledged_after(member, False, capfdbinary)
    assert capfdbinary.readouterr().out == b"1\n"
    outcomes = [outcome for _, outcome in member.consumer.acknowledged]
    assert outcomes == [ACCEPT, RELEASE, RELEASE]


INVALID = [
    ("kafka-console-share-consumer --group g", "missing required flag --topic"),
    ("kafka-console-share-consumer --topic t --release --reject", "--reject cannot be used with"),
    ("kafka-console-share-consumer --topic t --max-messages -2", "must not be negative"),
    ("kafka-console-share-consumer --topic t --from-beginning", "unknown flag --from-beginning"),
    (
        "kafka-console-share-consumer --topic t --group g --command-property group.id=h",
        "--group g contradicts the property group.id=h",
    ),
    ("kafka-share-groups --describe", "specify exactly one of --group or --all-groups"),
    ("kafka-share-groups --describe --group g --members --state", "at most one of"),
    ("kafka-share-groups --describe --group g --state Empty", "does not take a value"),
    ("kafka-share-groups --list --state Assigning", "a list of Empty, Stable, Dead"),
    ("kafka-share-groups --list --group g", "--group cannot be used with --list"),
    ("kafka-share-groups --delete --group g --topic t", "--topic requires --reset-offsets or"),
    ("kafka-share-groups --reset-offsets --group g --to-latest", "one of --execute or --dry-run"),
    ("kafka-share-groups --reset-offsets --group g --dry-run", "exactly one of --to-earliest"),
    ("kafka-share-groups --reset-offsets --group g --group h --dry-run --to-latest", "only one"),
    (
        "kafka-share-groups --reset-offsets --group g --dry-run --to-latest --topic t --all-topics",
        "exactly one of --topic or --all-topics",
    ),
    ("kafka-share-groups --delete-offsets --group g", "missing required flag --topic"),
    ("kafka-share-groups --delete-offsets --group g --topic t:0", "of whole topics"),
    ("kafka-groups --share", "specify exactly one of --list"),
    ("kafka-groups --list --group-type none", "--group-type must be one of classic, consumer"),
    ("kafka-groups --list --share --protocol x", "--protocol cannot be used with --share"),
]


@pytest.mark.parametrize(("words", "sentence"), INVALID, ids=[words for words, _ in INVALID])
def test_invalid_flags_are_one_sentence(words, sentence, capsys):
    assert start.main([*words.split(), "--bootstrap-server", "127.0.0.1:1"]) == 1
    result = capsys.readouterr()
    assert (result.out, result.err.count("\n")) == ("", 1)
    assert sentence in result.err


class FakeAdmin:
    """An Admin of a cluster with a share group of one member, and one without members."""

    def __init__(self) -> None:
        partition = TopicPartition("jobs", 0)
        worker = MemberDescription("m1", None, "c", "/h", (partition,), None, 2, "share")
        self.groups = {
            name: GroupDescription(name, "share", state, "simple", 3, 2, 0, members)
            for name, state, members in (("busy", "Stable", (worker,)), ("idle", "Empty", ()))
        }
        self.offsets = {partition: ShareOffset(5, 2, 1), ("jobs", 1): ShareOffset(None, None, None)}

    def list_groups(self, types, states=()):
        return [
            GroupListing(name, "share", group.state, "share")
            for name, group in self.groups.items()
            if not states or group.state in states
        ]

    def describe_group(self, name):
        if name not in self.groups:
            raise GroupIdNotFound
        return self.groups[name]

    def share_offsets(self, name):
        self.describe_group(name)
        return self.offsets

    def delete_group(self, name):
        if self.describe_group(name).members:
            raise NonEmptyGroup
        del self.groups[name]

    def delete_share_offsets(self, name, topics):
        self.describe_group(name)
        if topics != ["jobs"]:
            raise UnknownTopicOrPartition


@pytest.fixture
def tool(capsys):
    """A function that runs a command of kafka-share-groups against the fake cluster."""
    admin = FakeAdmin()

    def run(line: str) -> tuple[int, list[str]]:
        options = parse(line.split(), share_groups.FLAGS)
        action = options.action(*share_groups.ACTIONS)
        code = share_groups.VERBS[action](None, admin, options)
        return code, capsys.readouterr().out.splitlines()

    return run


def test_share_groups_are_listed_by_state(tool):
    assert tool("--list") == (0, ["busy", "idle"])
    titles, row = "GROUP           STATE", "idle            Empty"
    assert tool("--list --state empty,dead") == (0, [titles, row])


def test_share_group_is_described_with_offsets_and_members(tool):
    _, (_, titles, *rows) = tool("--describe --group busy --verbose")
    assert titles.split() == ["GROUP", "TOPIC", "PARTITION", "LEADER-EPOCH", "START-OFFSET", "LAG"]
    assert [row.split() for row in rows] == [
        ["busy", "jobs", "0", "1", "5", "2"],
        ["busy", "jobs", "1", "-", "-", "-"],
    ]
    _, (_, titles, row) = tool("--describe --group busy --members --verbose")
    assert titles.split() == [
        "GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "MEMBER-EPOCH", "ASSIGNMENT",
    ]  # fmt: skip
    assert row.split() == ["busy", "m1", "/h", "c", "1", "2", "jobs:0"]
    assert tool("--describe --group idle --members") == (0, [])
    with pytest.raises(Refusal, match="Group nobody not found"):
        tool("--describe --group nobody")


def test_share_groups_are_deleted_if_they_are_empty(tool):
    code, lines = tool("--delete --group busy --group idle --group nobody")
    assert code == 1
    assert lines == [
        "",
        "Error: Deletion of some share groups failed:",
        "* Group 'busy' could not be deleted due to: Share group 'busy' is not EMPTY.",
        "* Group 'nobody' could not be deleted due to: Group 'nobody' is not a share group.",
        "",
        "These share groups were deleted successfully: 'idle'",
    ]


def test_offsets_of_share_group_are_deleted_by_topic(tool):
    code, lines = tool("--delete-offsets --group idle --topic jobs --topic other")
    assert code == 1
    assert lines[:3] == ["", "TOPIC           STATUS", "jobs            Successful"]
    assert lines[3].startswith("other           Error: ")
    code, lines = tool("--delete-offsets --group nobody --topic jobs")
    assert (code, lines[1][:7], lines[3].split()) == (1, "Error: ", ["TOPIC", "STATUS"])


GROUPS = [
    GroupListing("a", "classic", "Stable", "consumer"),
    GroupListing("b", "classic", "Empty", ""),
    GroupListing("c", "classic", "Stable", "connect"),
    GroupListing("d", "consumer", "Stable", "consumer"),
    GroupListing("e", "share", "Stable", "share"),
]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("--list", "abcde"),
        ("--list --consumer", "abd"),
        ("--list --share", "e"),
        ("--list --streams", ""),
        ("--list --group-type Classic", "abc"),
        ("--list --protocol consumer", "ad"),
        ("--list --group-type classic --protocol connect", "c"),
    ],
)
def test_groups_are_filtered_by_type_and_protocol(words, names):
    options = parse(words.split(), groups.FLAGS)
    assert [each.group_id for each in GROUPS if groups.is_chosen(each, options)] == [*names]


def test_groups_are_listed_in_columns_of_one_width():
    lines = groups.table([GROUPS[1], GROUPS[4]._replace(group_id="x" * 30)]).splitlines()
    assert lines == [
        f"{'GROUP':30} {'TYPE':30} {'PROTOCOL':30}",
        f"{'b':30} {'Classic':30} {'':30} ",
        f"{'x' * 30} {'Share':30} {'share':30} ",
    ]


def test_groups_of_every_type_are_listed(kafka_broker, kafka_topic, capsys):
    words = ["--bootstrap-server", kafka_broker.bootstrap]
    group = f"{kafka_topic}-readers"
    reset = ["--reset-offsets", "--group", group, "--topic", kafka_topic, "--to-latest"]
    assert start.main(["kafka-consumer-groups", *words, *reset, "--execute"]) == 0
    capsys.readouterr()
    assert start.main(["kafka-groups", *words, "--list"]) == 0
    assert [group, "Classic"] in [line.split() for line in capsys.readouterr().out.splitlines()]
