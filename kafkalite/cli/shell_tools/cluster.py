"""The cluster a tool is told of by `--bootstrap-server` and `--command-config`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient, ClusterMetadata

from kafkalite.cli.clients import ClusterClients, plain
from kafkalite.cli.shell_tools.flags import Flag, ParsedFlags
from kafkalite.cli.shell_tools.java_properties import properties_in, translated
from kafkalite.errors import Refusal

Key = TypeVar("Key")
Answer = TypeVar("Answer")

BOOTSTRAP = Flag("bootstrap-server", "HOST:PORT,…", "where the cluster is; must be given")
COMMAND_CONFIG = Flag("command-config", "FILE", "a file with properties of the client")
CONNECTION = (BOOTSTRAP, COMMAND_CONFIG)


class ToolCluster(ClusterClients):
    """A cluster that a tool was told of."""

    @property
    def plain(self) -> bool:
        """Whether it is reached without TLS and login, so that cli/wire.py can ask it too."""
        return self.properties.get("security.protocol", "plaintext").lower() == "plaintext"

    def metadata(
        self, client: AdminClient | Producer | Consumer, topic: str | None = None
    ) -> ClusterMetadata:
        try:
            return super().metadata(client, topic)
        except Refusal:
            why = f": {plain(self.complaint)}" if self.complaint else ""
            raise Refusal(f"no broker answers at {self.bootstrap}{why}") from None


def brokers(asked: ParsedFlags, properties: Sequence[tuple[str, str]] = ()) -> ToolCluster:
    """The cluster that the flags name; the properties given win over the file's."""
    asked.wants("bootstrap-server")
    path = asked.one("command-config")
    known = translated([*(properties_in(path) if path else ()), *properties])
    known.pop("bootstrap.servers", None)
    return ToolCluster(asked.one("bootstrap-server"), list(known.items()))


def settled(
    futures: Mapping[Key, Future[Answer]],
) -> tuple[dict[Key, Answer], dict[Key, KafkaError]]:
    """Wait for every answer: those that came well, and the faults of the others."""
    answers: dict[Key, Answer] = {}
    faults: dict[Key, KafkaError] = {}
    for key, future in futures.items():
        try:
            answers[key] = future.result()
        except KafkaException as fault:
            faults[key] = fault.args[0]
    return answers, faults


def answered(futures: Mapping[Key, Future[Answer]]) -> dict[Key, Answer]:
    """Every answer; the first fault among them is the whole question's."""
    answers, faults = settled(futures)
    for fault in faults.values():
        raise KafkaException(fault)
    return answers


def internal_topics(admin: AdminClient, names: Iterable[str]) -> set[str]:
    """Those of the topics that the cluster keeps for itself."""
    if not (all_names := [*names]):
        return set()
    found = answered(admin.describe_topics(TopicCollection(all_names)))
    return {name for name, topic in found.items() if topic.is_internal}


@contextmanager
def faults_as_sentences() -> Iterator[None]:
    """What librdkafka refuses becomes a sentence, before it asks a broker as well."""
    try:
        yield
    except KafkaException as fault:
        raise Refusal(sentence(fault)) from fault
    except ValueError as fault:
        raise Refusal(str(fault)) from fault


def sentence(fault: KafkaException) -> str:
    """The broker's own words where it had any."""
    error: Any = fault.args[0]
    return plain(error.str()) if isinstance(error, KafkaError) else str(error)
