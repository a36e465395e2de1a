"""Kafka clients of the commands: librdkafka without its log, with its errors as messages.

The commands work with any Kafka broker and import no part of kafkalite's broker.  librdkafka's
log is off; the last network error is stored, and reported if no broker responds within
REQUEST_TIMEOUT_S.  `-X` sets any librdkafka property and overrides those of the commands.
profiles.py defines which cluster is used.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypedDict, TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ClusterMetadata, OffsetSpec, TopicMetadata

from kafkalite.cli import profiles
from kafkalite.cli.command import argument, key_value, printable, warn
from kafkalite.errors import Refusal
from kafkalite.process.status.ready import default_data_directory, running

Key = TypeVar("Key")
Result = TypeVar("Result")

BOOTSTRAP_DEFAULT = "127.0.0.1:9092"

CONNECTION = (
    argument(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT",
        type=printable,
        help="broker to connect to (default: --profile, $KAFKALITE_BOOTSTRAP,"
        " $KAFKALITE_PROFILE, the profile in use, the broker on this machine, or"
        f" {BOOTSTRAP_DEFAULT}; see kafkalite profile --help)",
    ),
    argument(
        "--profile",
        metavar="PROFILE",
        help="use the cluster of this profile (see: kafkalite profile list)",
    ),
    argument(
        "-X",
        dest="properties",
        metavar="PROP=VALUE",
        type=key_value,
        action="append",
        default=[],
        help="set a librdkafka property; may be repeated",
    ),
)
"""The arguments of every command that connects to a broker: `ClusterClients(**connection)`."""


class ConnectionArguments(TypedDict):
    """Values of the CONNECTION arguments."""

    bootstrap: str | None
    profile: str | None
    properties: Sequence[tuple[str, str]]


PRODUCER: dict[str, Any] = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    "delivery.report.only.error": True,
    # The broker limits the size of records.
    "message.max.bytes": 1_000_000_000,
}

CONSUMER: dict[str, Any] = {
    "group.id": "kafkalite",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    # A slow reader of the output must not exceed the poll interval.
    "max.poll.interval.ms": 86_400_000,
    # The default pauses fetching for a second when the queue is full, and the queue runs empty.
    "fetch.queue.backoff.ms": 2,
}

REQUEST_TIMEOUT_S = 5.0
CHANGE_TIMEOUT_S = 30.0
"""Timeout of requests that change the cluster: a kafkalite broker waits up to 5 s for nodes that do
not apply a change, which holds in any case."""
CREATION_TIMEOUT_S = 3.0
FUTURE_GRACE_S = 1.0
"""Time after the timeout of a request in which librdkafka completes its futures."""
STALL_S = 5.0

PORT = re.compile(r"(?:\w+://)?(?:\[[^]]*\]|[^:]*):([^:/]*)")


class ClusterAddress(NamedTuple):
    """Address and properties of a cluster, and the name of their profile or ""."""

    bootstrap: str
    properties: Mapping[str, str]
    profile: str


def resolve_address(bootstrap: str | None, profile: str | None) -> ClusterAddress:
    """Return the first address in the order of precedence that profiles.py defines.

    An address is not combined with the properties of a profile that the command line does not name:
    they may contain a password for another cluster.
    """
    if profile is not None:
        return profile_address(profile, profiles.profile_of(profile), bootstrap)
    if bootstrap is not None:
        return ClusterAddress(bootstrap, {}, "")
    if named := os.environ.get("KAFKALITE_BOOTSTRAP"):
        return ClusterAddress(named, {}, "")
    if named := os.environ.get("KAFKALITE_PROFILE"):
        return profile_address(named, profiles.profile_of(named))
    if in_use := profiles.profile_in_use():
        return profile_address(*in_use)
    with suppress(Refusal):  # the directory belongs to another user
        if ready := running(default_data_directory()):
            return ClusterAddress(ready["bootstrap"], {}, "")
    return ClusterAddress(BOOTSTRAP_DEFAULT, {}, "")


def profile_address(
    name: str, profile: Mapping[str, str], bootstrap: str | None = None
) -> ClusterAddress:
    properties = {key: value for key, value in profile.items() if key != profiles.ADDRESS}
    return ClusterAddress(bootstrap or profile[profiles.ADDRESS], properties, name)


class ClusterClients:
    """Creates the clients of one cluster."""

    def __init__(
        self,
        bootstrap: str | None = None,
        properties: Sequence[tuple[str, str]] = (),
        profile: str | None = None,
    ) -> None:
        self.bootstrap, profile_properties, self.profile = resolve_address(bootstrap, profile)
        if not self.bootstrap.isprintable():  # librdkafka would crash
            raise Refusal(
                f"{self.bootstrap!r} is not a valid HOST:PORT: it has unprintable characters"
            )
        for address in self.bootstrap.split(","):  # librdkafka would use 34463 for 99999
            port = PORT.fullmatch(address.strip())
            if port and not (port[1].isdecimal() and 0 < int(port[1][:9]) < 65_536):
                raise Refusal(f"{address!r} is not a valid HOST:PORT: the port must be 1 to 65535")
        self.properties = {**profile_properties, **dict(properties)}
        self.last_error = ""
        self.is_connected = False

    def admin(self) -> AdminClient:
        return AdminClient(self.settings({}))

    def connected_admin(self) -> AdminClient:
        """Return an admin client after the cluster has responded."""
        with kafka_errors_as_refusals():
            admin = self.admin()
            self.metadata(admin)
        return admin

    def producer(self, settings: dict[str, Any]) -> Producer:
        """Return a producer with idempotence and the partitioner of Java's clients."""
        acks = self.properties.get("acks", self.properties.get("request.required.acks", "all"))
        if acks not in ("all", "-1"):
            settings = settings | {"enable.idempotence": False}
        return Producer(self.settings(PRODUCER | settings))

    def consumer(self, settings: dict[str, Any]) -> Consumer:
        """Return a consumer for assigned partitions; it joins no group."""
        return Consumer(self.settings(CONSUMER | settings))

    def settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "log_level": 0,
            "error_cb": self._on_error,
            **settings,
            **self.properties,
        }

    def _on_error(self, error: KafkaError) -> None:
        """Store network errors, and warn once when the cluster stops responding."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.last_error = error.str()
        elif self.is_connected:
            self.is_connected = False
            warn(f"connection to {self.bootstrap} lost; retrying (press Ctrl-C to stop)")

    def metadata(
        self, client: AdminClient | Producer | Consumer, topic: str | None = None
    ) -> ClusterMetadata:
        """Return the cluster's metadata; raise Refusal if no broker responds."""
        arguments = {} if topic is None else {"topic": topic}
        for timeout_s in (0.5, REQUEST_TIMEOUT_S - 0.5):
            try:
                metadata = client.list_topics(timeout=timeout_s, **arguments)
                self.is_connected = True
                return metadata
            except KafkaException as error:
                client.poll(0)
                unreachable = KafkaError._TRANSPORT, KafkaError._TIMED_OUT
                if error.args[0].code() not in unreachable:
                    raise
                if self.last_error:
                    break
        named = f" (profile {self.profile})" if self.profile else ""
        raise Refusal(
            f"no broker responds at {self.bootstrap}{named}"
            f"{': ' + clean_error(self.last_error) if self.last_error else ''}"
            " (start one with: kafkalite start; or choose another with -b)"
        )

    def topic(self, client: AdminClient | Producer | Consumer, name: str) -> TopicMetadata:
        """Return a topic's partitions; raise Refusal if the topic does not exist.

        A producer's Metadata request creates the topic where the broker allows that; the response
        may arrive before the topic exists.
        """
        transient = {KafkaError.LEADER_NOT_AVAILABLE}
        if isinstance(client, Producer):
            transient.add(KafkaError.UNKNOWN_TOPIC_OR_PART)
        deadline_s = time.monotonic() + CREATION_TIMEOUT_S
        while True:
            metadata = self.metadata(client, name).topics[name]
            if metadata.error is None:
                return metadata
            if metadata.error.code() not in transient or time.monotonic() > deadline_s:
                raise Refusal(
                    f"topic {name!r}: {clean_error(metadata.error.str())}"
                    " (see: kafkalite topic list, kafkalite topic create)"
                )
            client.poll(0.05)


class StallWarning:
    """Warns once if the brokers respond but there is no progress.

    librdkafka retries forever and reports nothing if a disk is full or a partition is corrupt.
    """

    def __init__(self, cluster: ClusterClients, subject: str, problem: str) -> None:
        self.cluster = cluster
        self.message = (
            f"{subject}: {problem} for {STALL_S:.0f} s; retrying (see the broker's log, or press"
            " Ctrl-C to stop)"
        )
        self.last_progress: object = None
        self.warn_at = time.monotonic() + STALL_S

    def check(self, progress: object) -> None:
        """Warn once if `progress` has not changed for STALL_S."""
        now = time.monotonic()
        if progress != self.last_progress:
            self.last_progress = progress
            self.warn_at = now + STALL_S
        elif now > self.warn_at:
            self.warn_at = float("inf")
            if self.cluster.is_connected:  # otherwise _on_error has warned
                warn(self.message)


def settled(
    futures: Mapping[Key, Future[Result]],
) -> tuple[dict[Key, Result], dict[Key, KafkaError]]:
    """Wait for all futures; return results and errors by key."""
    results: dict[Key, Result] = {}
    errors: dict[Key, KafkaError] = {}
    for key, future in futures.items():
        try:
            results[key] = future.result()
        except KafkaException as error:
            errors[key] = error.args[0]
    return results, errors


def listed_offsets(
    admin: AdminClient,
    wanted: Mapping[TopicPartition, OffsetSpec],
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> dict[tuple[str, int], int]:
    """Return the offsets by topic and partition, without those whose leader does not respond.

    If one leader does not respond, librdkafka completes the futures of all at the timeout.  The
    offset is then OFFSET_INVALID, without an error.
    """
    futures = admin.list_offsets({**wanted}, request_timeout=timeout_s) if wanted else {}
    found = {}
    for each, future in futures.items():
        with suppress(KafkaException, TimeoutError):
            offset = future.result(timeout_s + FUTURE_GRACE_S).offset
            if offset != OFFSET_INVALID:
                found[each.topic, each.partition] = offset
    return found


def clean_error(text: str) -> str:
    """Return an error text of librdkafka without its internal prefixes."""
    prefixes = r"^(Broker|Local): |^\S+/(bootstrap|\d+): | \(after \d+ms in state [^)]*\)$"
    return re.sub(prefixes, "", text)


def node_error(error: KafkaError | KafkaException) -> str:
    """Return the text of a node's error in a result of librdkafka.

    It is declared as a KafkaException, and is a KafkaError.
    """
    return clean_error((error if isinstance(error, KafkaError) else error.args[0]).str())


@contextmanager
def kafka_errors_as_refusals() -> Iterator[None]:
    """Turn an error of librdkafka into a Refusal with its text."""
    try:
        yield
    except KafkaException as error:
        raise Refusal(clean_error(error.args[0].str())) from error
