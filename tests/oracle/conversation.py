"""One scene's requests to one broker, recorded so that another broker's can be compared.

Every `ask` and `send` is recorded with its response; `quietly` is for requests that a scene needs
but does not compare.  Values that may differ between two correct brokers are replaced in the
record: ids by the order of their appearance, the current time by "now", addresses by "here", texts
by "text".  The rest must be equal.
"""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kafkalite.ids import NO_ID
from kafkalite.protocol.schema import Api, Fields
from kafkalite.protocol.schemas import cluster, offsets, topics, transactions
from kafkalite.protocol.types import Array, Field, Struct
from tests.oracle.batches import described
from tests.protocol.values import is_own

# For responses and conditions that must come, however busy the machine is.
WAIT_S = 20.0
# Long enough for any broker to close a connection that it will close.
SILENCE_S = 1.0
NOW_WITHIN_MS = 3_600_000

# Lists that are maps: a missing entry is then one difference, and not one at every later position.
KEYED_BY = {"api_keys": "api_key", "configs": "name"}
ORDERED_BY = (
    "name", "topic", "topic_id", "partition_index", "index", "partition", "node_id", "key",
    "group_id", "group_instance_id", "metadata", "member_metadata", "member_id",
    "resource_type", "resource_name", "producer_id", "partition_id",
)  # fmt: skip
UNORDERED = ("requested_metrics",)
MADE_UP = ("topic_id", "member_id", "producer_id")
WHERE_IT_IS = (
    "listeners", "advertised.listeners", "log.dir", "log.dirs", "controller.quorum.voters",
)  # fmt: skip
TEXTS = (
    "error_message", "batch_index_error_message", "acknowledge_error_message", "documentation",
)  # fmt: skip
UNTOLD = (-1, "", None, "none")
NAMES = ("name", "topic", "group_id", "resource_name")

# A broker makes a member id of the client or instance id and a random suffix.
GIVEN_ID = re.compile(r"-?[0-9a-zA-Z_-]{22}$|-?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


class Topic(NamedTuple):
    name: str
    id: bytes


class Conversation:
    """Requests to one broker; `said` is the record."""

    def __init__(self, bootstrap: str, scene: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.address = (host, int(port))
        self.bootstrap = bootstrap
        self.scene = scene
        self.said: list[dict[str, object]] = []
        self.symbols: dict[tuple[str, object], str] = {}
        self.connection: socket.socket | None = None
        self.correlation_id = 0
        self.topic_count = 0
        self.others: list[Conversation] = []

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()
        for other in self.others:
            other.hang_up()

    def beside(self) -> Conversation:
        """Open another connection to the same broker, with the same record."""
        other = Conversation(self.bootstrap, self.scene)
        other.said, other.symbols = self.said, self.symbols
        self.others.append(other)
        return other

    # Requests of a scene

    def ask(
        self,
        api: Api,
        version: int,
        body: Mapping[str, object],
        *,
        note: str = "",
        only: str = "",
        veil: Sequence[str] = (),
    ) -> Fields | None:
        """Send and record; return None if the broker closed the connection or did not respond.

        `only` keeps the entries with this name of a response that lists everything.  Of fields in
        `veil` only their presence is recorded."""
        try:
            self.begin(api, version, body)
        except ConnectionError:
            self.hang_up()
        return self.hear(api, version, note=note, only=only, veil=veil)

    def begin(self, api: Api, version: int, body: Mapping[str, object]) -> None:
        """Send a request whose response may come later; `hear` waits for it and records it."""
        self.send_frame(self.header(api, version) + api.request.write(version, dict(body)))

    def hear(
        self, api: Api, version: int, *, note: str = "", only: str = "", veil: Sequence[str] = ()
    ) -> Fields | None:
        """Receive and record the response to `begin`; the arguments are those of `ask`."""
        answer = None
        try:
            frame = self.receive_frame()
            answer = None if frame is None else self.read_answer(api, version, frame)
            if answer is None:
                shown: object = "closed"
            else:
                compared = without_own_fields(api.response.struct, answer)
                shown = veiled(self.plain(compared), veil)
        except TimeoutError:
            self.hang_up()
            shown = "silence"
        self.write_down(api, version, note, kept(shown, only) if only else shown)
        return answer

    def write_down(self, api: Api, version: int, note: str, shown: object) -> None:
        what = " ".join(part for part in (api.name, f"v{version}", note) if part)
        self.said.append({"asked": what, "answer": shown})

    def ask_without_answer(self, api: Api, version: int, body: Mapping[str, object]) -> None:
        """Send a request without a response (Produce with acks=0)."""
        frame = self.header(api, version) + api.request.write(version, dict(body))
        self.line().sendall(struct.pack(">i", len(frame)) + frame)

    def send(self, raw: bytes, *, note: str) -> None:
        """Send bytes that are no valid request; record only "answered", "closed" or "silence"."""
        line = self.line()
        line.sendall(raw)
        line.settimeout(SILENCE_S)
        try:
            outcome = "answered" if line.recv(1) else "closed"
        except TimeoutError:
            outcome = "silence"
        except ConnectionError:
            outcome = "closed"
        self.hang_up()
        self.said.append({"asked": note, "answer": outcome})

    def quietly(self, api: Api, version: int, body: Mapping[str, object]) -> Fields | None:
        """Send a request without recording it."""
        frame = self.header(api, version) + api.request.write(version, dict(body))
        answer = self.exchange(frame)
        if answer is None:
            return None
        return self.read_answer(api, version, answer)

    def exchange(self, frame: bytes) -> bytes | None:
        """Send one frame and receive one; return None if the broker closed the connection."""
        try:
            self.send_frame(frame)
        except ConnectionError:
            self.hang_up()
        return self.receive_frame()

    def send_frame(self, frame: bytes) -> None:
        self.line().sendall(struct.pack(">i", len(frame)) + frame)

    def receive_frame(self) -> bytes | None:
        if self.connection is None:
            return None
        with self.connection.makefile("rb") as stream:
            try:
                prefix = stream.read(4)
                answer = stream.read(int.from_bytes(prefix, "big"))
            except ConnectionError:
                prefix = answer = b""
        if len(prefix) < 4:
            self.hang_up()
            return None
        assert len(answer) == int.from_bytes(prefix, "big"), "an answer was cut short"
        return answer

    def topic(self, partitions: int = 1, prefix: str = "", **configs: str) -> Topic:
        """Create a topic and await its leaders; its name is the same on every broker."""
        self.topic_count += 1
        name = f"{self.scene}-{self.topic_count}".translate(str.maketrans("[]", "--", "\"' "))
        name = prefix + name
        wanted = {
            "name": name, "num_partitions": partitions, "replication_factor": 1,
            "configs": [
                {"name": key.replace("_", "."), "value": value} for key, value in configs.items()
            ],
        }  # fmt: skip
        answer = self.quietly(topics.CREATE_TOPICS, 7, {"topics": [wanted], "timeout_ms": 10_000})
        assert answer is not None
        assert answer.topics[0].error_code == 0, f"topic {name}: {answer.topics[0]}"
        self.await_leaders(name, partitions)
        made = Topic(name, bytes(answer.topics[0].topic_id))
        self.symbols["topic_id", made.id] = f"the id of topic {self.topic_count}"
        return made

    def await_leaders(self, name: str, partitions: int) -> None:
        """Wait until every partition is served, which Metadata may report too early.

        Only partitions whose leader is this broker are checked."""
        led = self.await_metadata(name, lambda found: is_led(found, partitions))
        ports = {node.node_id: node.port for node in led.brokers}
        here = [
            part.partition_index
            for part in led.topics[0].partitions
            if ports[part.leader_id] == self.address[1]
        ]
        wanted = [{"partition_index": index, "timestamp": -1} for index in here]
        body = {"replica_id": -1, "topics": [{"name": name, "partitions": wanted}]}
        self.await_answer(
            offsets.LIST_OFFSETS, 4, body,
            lambda found: not any(part.error_code for part in found.topics[0].partitions),
        )  # fmt: skip

    def await_metadata(self, name: str, wanted: Callable[[Fields], bool]) -> Fields:
        """Wait until this broker's metadata of the topic meets the condition."""
        body = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
        return self.await_answer(
            cluster.METADATA, 9, body, lambda answer: wanted(answer.topics[0])
        )

    def await_answer(
        self, api: Api, version: int, body: Mapping[str, object], wanted: Callable[[Fields], bool]
    ) -> Fields:
        """Repeat a request until its response meets the condition."""
        begun = time.monotonic()
        while True:
            answer = self.quietly(api, version, body)
            if answer is not None and wanted(answer):
                return answer
            assert time.monotonic() - begun < WAIT_S, f"{api.name} stays {answer}"
            time.sleep(0.002)

    def producer_id(self) -> int:
        """Return a new idempotent producer's id, with retries while the broker starts."""
        body = {"transactional_id": None, "transaction_timeout_ms": 0}
        begun = time.monotonic()
        while True:
            answer = self.quietly(transactions.INIT_PRODUCER_ID, 4, body)
            assert answer is not None
            if answer.error_code == 0:
                return int(answer.producer_id)
            assert time.monotonic() - begun < WAIT_S, f"no producer id: {answer}"
            time.sleep(0.002)

    # Transport

    def header(self, api: Api, version: int) -> bytes:
        self.correlation_id += 1
        plain = struct.pack(">hhih6s", api.key, version, self.correlation_id, 6, b"oracle")
        return plain + b"\0" if api.request_header_flexible(version) else plain

    def read_answer(self, api: Api, version: int, answer: bytes) -> Fields:
        assert int.from_bytes(answer[:4], "big") == self.correlation_id, "another's answer"
        start = 5 if api.response_header_flexible(version) else 4
        unknown_version = api.key == cluster.API_VERSIONS.key and version > api.versions[1]
        return api.response.read(0 if unknown_version else version, answer, start)

    def line(self) -> socket.socket:
        if self.connection is None:
            self.connection = socket.create_connection(self.address, WAIT_S)
        return self.connection

    def hang_up(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    # Form of the record

    def plain(self, value: object, name: str = "") -> object:
        if isinstance(value, dict):
            here = value.get("name") in WHERE_IT_IS and value.get("value")
            plain = {key: self.plain(each, key) for key, each in value.items()}
            return {**plain, "value": "here"} if here else plain
        if isinstance(value, list):
            return self.plain_list(value, name)
        if name in TEXTS:
            return value and "text"
        if name in ("host", "port", "cluster_id", "client_host"):
            return value if value in ("", -1) else "here"
        if name in ("member_id", "leader") and GIVEN_ID.search(str(value)):
            return self.symbol("member", value)
        if name == "finalized_features_epoch":
            return value if value == -1 else "told"
        if (name == "producer_id" and value != -1) or (name == "session_id" and value != 0):
            return self.symbol(name, value)
        if name in ("base_timestamp", "max_timestamp", "timestamp", "log_append_time_ms"):
            assert isinstance(value, int)
            return "now" if abs(value - time.time() * 1000) < NOW_WITHIN_MS else value
        if isinstance(value, bytes | bytearray | memoryview):
            return self.plain_bytes(bytes(value), name)
        return value

    def plain_list(self, values: list[object], name: str) -> object:
        if name in KEYED_BY:
            key = KEYED_BY[name]
            return {str(each[key]): self.plain(each) for each in values}  # type: ignore[index]
        if not values or not isinstance(values[0], dict):
            listed = [self.plain(each) for each in values]
            return sorted(map(str, listed)) if name in UNORDERED else listed
        # Ids are numbered in the order of their appearance, so that order must be deterministic.
        appearing = sorted(values, key=lambda entry: place(entry, without=MADE_UP))
        return sorted((self.plain(each) for each in appearing), key=place)

    def plain_bytes(self, value: bytes, name: str) -> object:
        if name == "records":
            return self.plain(described(value))
        if name == "client_instance_id":
            return "none" if value == NO_ID else self.symbol(name, value)
        if name == "topic_id":
            return "none" if value == NO_ID else self.symbols.get((name, value), "an id")
        return value.hex()

    def symbol(self, name: str, value: object) -> str:
        """Return "…-1" for the first id of a kind, "…-2" for the next new one, on every broker."""
        if (name, value) not in self.symbols:
            number = sum(1 for kind, _ in self.symbols if kind == name)
            self.symbols[(name, value)] = f"{name}-{number + 1}"
        return self.symbols[(name, value)]


def without_own_fields(field: Field, value: object) -> object:
    """Return a decoded value without the fields that are ours and were not sent.

    One that was sent stays, and so is a difference from Apache Kafka."""
    if isinstance(field, Array) and isinstance(value, list):
        return [without_own_fields(field.element, each) for each in value]
    if isinstance(field, Struct) and isinstance(value, dict):
        return {
            name: without_own_fields(field.fields[name], each)
            for name, each in value.items()
            if not (is_own(field.fields[name]) and each == field.fields[name].default)
        }
    return value


def place(entry: object, without: Sequence[str] = ()) -> tuple[str, ...]:
    assert isinstance(entry, dict)
    keys = [key for key in ORDERED_BY if key in entry and key not in without]
    return tuple(f"{entry[key]!s:0>8}" for key in keys)


def kept(shown: object, name: str) -> object:
    """Filter the named entries of all lists in a response by this name."""
    if isinstance(shown, dict):
        return {key: kept(each, name) for key, each in shown.items()}
    if isinstance(shown, list):
        return [kept(each, name) for each in shown if called(each) in (None, name)]
    return shown


def called(entry: object) -> object:
    """Return the name of a list's entry, or None if it has none."""
    names = [entry[key] for key in NAMES if key in entry] if isinstance(entry, dict) else []
    return names[0] if names else None


def veiled(shown: object, names: Sequence[str]) -> object:
    """Replace the fields of these names, if they are set, by a constant."""
    if isinstance(shown, dict):
        return {
            key: "told" if key in names and each not in UNTOLD else veiled(each, names)
            for key, each in shown.items()
        }
    return [veiled(each, names) for each in shown] if isinstance(shown, list) else shown


def is_led(found: Fields, partitions: int) -> bool:
    led = [part for part in found.partitions if part.leader_id >= 0 and part.error_code == 0]
    return found.error_code == 0 and len(led) == partitions


def is_gone(found: Fields) -> bool:
    return bool(found.error_code == 3)
