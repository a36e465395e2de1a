"""The Kafka clients behind the commands: librdkafka, quiet, its faults as sentences.

Whatever talks to a broker here talks to any Kafka: nothing of kafkalite's broker is imported.
librdkafka logs nothing; its complaints about the network are kept, so that a broker that does not
answer is one sentence after a few seconds.  `-X` may set any of librdkafka's properties and wins
over what the commands set themselves.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ClusterMetadata, TopicMetadata

from kafkalite.cli.command import argument, key_value
from kafkalite.errors import Refusal

BOOTSTRAP_DEFAULT = "127.0.0.1:9092"

CONNECTION = (
    argument(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT",
        default=os.environ.get("KAFKALITE_BOOTSTRAP", BOOTSTRAP_DEFAULT),
        help="a broker of the cluster (default: %(default)s, or $KAFKALITE_BOOTSTRAP)",
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
"""The arguments of every command that asks a broker."""

ANSWER_TIMEOUT_S = 5.0


class Cluster:
    """The Kafka behind an address."""

    def __init__(self, bootstrap: str, properties: Sequence[tuple[str, str]]) -> None:
        self.bootstrap = bootstrap
        self.properties = dict(properties)
        self.complaint = ""

    def admin(self) -> AdminClient:
        return AdminClient(self.settings({}))

    def producer(self, settings: dict[str, Any]) -> Producer:
        """Nothing is lost, doubled or reordered by a retry; keys land where Java's land."""
        return Producer(
            self.settings({
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "delivery.report.only.error": True,
                # What a record may weigh is the broker's to say.
                "message.max.bytes": 1_000_000_000,
                **settings,
            })
        )

    def consumer(self, settings: dict[str, Any] | None = None) -> Consumer:
        """For assigned partitions: the group is a name librdkafka asks for, never joined."""
        return Consumer(
            self.settings({
                "group.id": "kafkalite",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                # librdkafka's second of rest, when its queue is full, is long enough to empty it.
                "fetch.queue.backoff.ms": 2,
                **(settings or {}),
            })
        )

    def settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "log_level": 0,
            "error_cb": self.heard,
            **settings,
            **self.properties,
        }

    def heard(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.complaint = error.str()

    def metadata(
        self, client: AdminClient | Producer | Consumer, topic: str | None = None
    ) -> ClusterMetadata:
        """What the cluster says of itself; or the sentence that nobody answers."""
        words = {} if topic is None else {"topic": topic}
        for timeout_s in (1.0, ANSWER_TIMEOUT_S - 1.0):
            try:
                return client.list_topics(timeout=timeout_s, **words)
            except KafkaException as fault:
                client.poll(0)
                silent = KafkaError._TRANSPORT, KafkaError._TIMED_OUT
                if fault.args[0].code() not in silent:
                    raise
                if self.complaint:
                    break
        raise Refusal(
            f"no broker answers at {self.bootstrap}"
            f"{': ' + plain(self.complaint) if self.complaint else ''}"
            " (start one with: kafkalite start; or name another with -b)"
        )

    def topic(self, client: Producer | Consumer, name: str) -> TopicMetadata:
        """A topic's partitions; or the sentence that it does not exist."""
        found = self.metadata(client, name).topics[name]
        if found.error is not None:
            raise Refusal(f"topic {name!r}: {plain(found.error.str())}")
        return found


def plain(text: str) -> str:
    """librdkafka's words without where inside it they were said."""
    text = text.removeprefix("Broker: ").removeprefix("Local: ")
    return text.partition("/bootstrap: ")[2] or text


@contextmanager
def sentences() -> Iterator[None]:
    """What librdkafka refuses becomes a sentence."""
    try:
        yield
    except KafkaException as fault:
        raise Refusal(plain(fault.args[0].str())) from fault
