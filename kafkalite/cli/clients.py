"""The Kafka clients behind the commands: librdkafka, quiet, its faults as sentences.

Whatever talks to a broker here talks to any Kafka: nothing of kafkalite's broker is imported.
librdkafka logs nothing; its complaints about the network are kept, so that a broker that does not
answer is one sentence after a few seconds.  `-X` may set any of librdkafka's properties and wins
over what the commands set themselves.  Which cluster is asked is said in profiles.py.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypedDict

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ClusterMetadata, TopicMetadata

from kafkalite.cli import profiles
from kafkalite.cli.command import argument, key_value, printable, warn
from kafkalite.errors import Refusal
from kafkalite.process.status.ready import default_data_directory, running

BOOTSTRAP_DEFAULT = "127.0.0.1:9092"

CONNECTION = (
    argument(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT",
        type=printable,
        help="a broker of the cluster (default: --profile, $KAFKALITE_BOOTSTRAP,"
        " $KAFKALITE_PROFILE, the profile in use, the broker that runs here, or"
        f" {BOOTSTRAP_DEFAULT}; see kafkalite profile --help)",
    ),
    argument(
        "--profile",
        metavar="PROFILE",
        help="the cluster kept under this name (kafkalite profile list shows them)",
    ),
    argument(
        "-X",
        dest="properties",
        metavar="PROP=VALUE",
        type=key_value,
        action="append",
        default=[],
        help="set any librdkafka property",
    ),
)
"""The arguments of every command that asks a broker: `ClusterClients(**connection)`."""


class ConnectionArguments(TypedDict):
    """What they hold."""

    bootstrap: str | None
    profile: str | None
    properties: Sequence[tuple[str, str]]


PRODUCER: dict[str, Any] = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    "delivery.report.only.error": True,
    # What a record may weigh is the broker's to say.
    "message.max.bytes": 1_000_000_000,
}

CONSUMER: dict[str, Any] = {
    "group.id": "kafkalite",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    # A slow reader of our output must not make librdkafka think that nobody reads.
    "max.poll.interval.ms": 86_400_000,
    # Its default, a second of rest once its queue is full, is time enough to empty the queue.
    "fetch.queue.backoff.ms": 2,
}

ANSWER_TIMEOUT_S = 5.0
CREATION_TIMEOUT_S = 3.0
SILENCE_S = 5.0

PORT = re.compile(r"(?:\w+://)?(?:\[[^]]*\]|[^:]*):([^:/]*)")


class ClusterAddress(NamedTuple):
    """Where a cluster is, what it takes to reach it, and which profile says so, if one does."""

    bootstrap: str
    properties: Mapping[str, str]
    profile: str


def found(bootstrap: str | None, profile: str | None) -> ClusterAddress:
    """The cluster that is named first, in the order that profiles.py gives.

    An address takes nothing from a profile that was not named beside it: what is in there, a
    password perhaps, is for another cluster.
    """
    if profile is not None:
        return placed(profile, profiles.profile_of(profile), bootstrap)
    if bootstrap is not None:
        return ClusterAddress(bootstrap, {}, "")
    if named := os.environ.get("KAFKALITE_BOOTSTRAP"):
        return ClusterAddress(named, {}, "")
    if named := os.environ.get("KAFKALITE_PROFILE"):
        return placed(named, profiles.profile_of(named))
    if in_use := profiles.profile_in_use():
        return placed(*in_use)
    with suppress(Refusal):  # somebody else's
        if ready := running(default_data_directory()):
            return ClusterAddress(ready["bootstrap"], {}, "")
    return ClusterAddress(BOOTSTRAP_DEFAULT, {}, "")


def placed(name: str, profile: Mapping[str, str], bootstrap: str | None = None) -> ClusterAddress:
    properties = {key: value for key, value in profile.items() if key != profiles.ADDRESS}
    return ClusterAddress(bootstrap or profile[profiles.ADDRESS], properties, name)


class ClusterClients:
    """The Kafka that a command asks."""

    def __init__(
        self,
        bootstrap: str | None = None,
        properties: Sequence[tuple[str, str]] = (),
        profile: str | None = None,
    ) -> None:
        self.bootstrap, held, self.profile = found(bootstrap, profile)
        if not self.bootstrap.isprintable():  # librdkafka would not survive it
            raise Refusal(f"{self.bootstrap!r} is no address")
        for address in self.bootstrap.split(","):  # librdkafka asks port 34463 for 99999
            port = PORT.fullmatch(address.strip())
            if port and not (port[1].isdecimal() and 0 < int(port[1][:9]) < 65_536):
                raise Refusal(f"{address!r} is no HOST:PORT: a port is 1 to 65535")
        self.properties = {**held, **dict(properties)}
        self.complaint = ""
        self.answered = False

    def admin(self) -> AdminClient:
        return AdminClient(self.settings({}))

    def reached(self) -> AdminClient:
        """The same, once the cluster has answered."""
        with sentences():
            admin = self.admin()
            self.metadata(admin)
        return admin

    def producer(self, settings: dict[str, Any]) -> Producer:
        """Nothing is lost, doubled or reordered by a retry; keys land where Java's land."""
        acks = self.properties.get("acks", self.properties.get("request.required.acks", "all"))
        if acks not in ("all", "-1"):
            settings = settings | {"enable.idempotence": False}
        return Producer(self.settings(PRODUCER | settings))

    def consumer(self, settings: dict[str, Any]) -> Consumer:
        """For assigned partitions: the group is a name librdkafka asks for, never joined."""
        return Consumer(self.settings(CONSUMER | settings))

    def settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "log_level": 0,
            "error_cb": self.heard,
            **settings,
            **self.properties,
        }

    def heard(self, error: KafkaError) -> None:
        """Keep what the network complains of; say it once when a cluster that answered is gone."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.complaint = error.str()
        elif self.answered:
            self.answered = False
            warn(f"{self.bootstrap} does not answer any more; waiting for it (Ctrl-C gives up)")

    def metadata(
        self, client: AdminClient | Producer | Consumer, topic: str | None = None
    ) -> ClusterMetadata:
        """What the cluster says of itself; or the sentence that nobody answers."""
        words = {} if topic is None else {"topic": topic}
        for timeout_s in (0.5, ANSWER_TIMEOUT_S - 0.5):
            try:
                found = client.list_topics(timeout=timeout_s, **words)
                self.answered = True
                return found
            except KafkaException as fault:
                client.poll(0)
                silent = KafkaError._TRANSPORT, KafkaError._TIMED_OUT
                if fault.args[0].code() not in silent:
                    raise
                if self.complaint:
                    break
        named = f" (profile {self.profile})" if self.profile else ""
        raise Refusal(
            f"no broker answers at {self.bootstrap}{named}"
            f"{': ' + plain(self.complaint) if self.complaint else ''}"
            " (start one with: kafkalite start; or name another with -b)"
        )

    def topic(self, client: Producer | Consumer, name: str) -> TopicMetadata:
        """A topic's partitions; or the sentence that it does not exist.

        A producer's question creates the topic where the broker allows that, and the answer may
        come before the topic is there.
        """
        passing = {KafkaError.LEADER_NOT_AVAILABLE}
        if isinstance(client, Producer):
            passing.add(KafkaError.UNKNOWN_TOPIC_OR_PART)
        give_up_at = time.monotonic() + CREATION_TIMEOUT_S
        while True:
            found = self.metadata(client, name).topics[name]
            if found.error is None:
                return found
            if found.error.code() not in passing or time.monotonic() > give_up_at:
                raise Refusal(
                    f"topic {name!r}: {plain(found.error.str())}"
                    " (see: kafkalite topic list, kafkalite topic create)"
                )
            client.poll(0.05)


class StallWarning:
    """Says once that the brokers answer and yet nothing comes of it.

    librdkafka asks again for ever when a disk is full or a partition damaged, and tells nobody.
    """

    def __init__(self, cluster: ClusterClients, who: str, what: str) -> None:
        self.cluster = cluster
        self.sentence = (
            f"{who}: {what} for {SILENCE_S:.0f} s; still trying (the broker's log may"
            " say why; Ctrl-C gives up)"
        )
        self.last_seen: object = None
        self.warn_at = time.monotonic() + SILENCE_S

    def look(self, seen: object) -> None:
        """Begin anew when something else is seen than the last time."""
        now = time.monotonic()
        if seen != self.last_seen:
            self.last_seen = seen
            self.warn_at = now + SILENCE_S
        elif now > self.warn_at:
            self.warn_at = float("inf")
            if self.cluster.answered:  # or else that was said already
                warn(self.sentence)


def plain(text: str) -> str:
    """librdkafka's words without where inside it they were said."""
    inside = r"^(Broker|Local): |^\S+/(bootstrap|\d+): | \(after \d+ms in state [^)]*\)$"
    return re.sub(inside, "", text)


@contextmanager
def sentences() -> Iterator[None]:
    """What librdkafka refuses becomes a sentence."""
    try:
        yield
    except KafkaException as fault:
        raise Refusal(plain(fault.args[0].str())) from fault
