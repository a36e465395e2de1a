"""Cluster of a shell tool, from `--bootstrap-server` and `--command-config`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient, ClusterMetadata

from kafkalite.cli.clients import ClusterClients, Key, Result, clean_error, settled
from kafkalite.cli.shell_tools.flags import Flag, ParsedFlags
from kafkalite.cli.shell_tools.java_properties import properties_in, translated
from kafkalite.errors import Refusal

BOOTSTRAP = Flag("bootstrap-server", "HOST:PORT,…", "addresses of brokers; required")
COMMAND_CONFIG = Flag("command-config", "FILE", "file with client properties")
CONNECTION = (BOOTSTRAP, COMMAND_CONFIG)


class ToolCluster(ClusterClients):
    """The cluster that a shell tool's flags name."""

    @property
    def is_plaintext(self) -> bool:
        """Return True if the connection uses neither TLS nor SASL, as cli/wire.py requires."""
        return self.properties.get("security.protocol", "plaintext").lower() == "plaintext"

    def metadata(
        self, client: AdminClient | Producer | Consumer, topic: str | None = None
    ) -> ClusterMetadata:
        try:
            return super().metadata(client, topic)
        except Refusal:
            why = f": {clean_error(self.last_error)}" if self.last_error else ""
            raise Refusal(f"no broker responds at {self.bootstrap}{why}") from None


def brokers(options: ParsedFlags, properties: Sequence[tuple[str, str]] = ()) -> ToolCluster:
    """Return the cluster that the flags name; `properties` override those of the file."""
    options.requires("bootstrap-server")
    path = options.one("command-config")
    known = translated([*(properties_in(path) if path else ()), *properties])
    known.pop("bootstrap.servers", None)
    return ToolCluster(options.one("bootstrap-server"), list(known.items()))


def results_of(futures: Mapping[Key, Future[Result]]) -> dict[Key, Result]:
    """Return all results; raise the first error."""
    results, errors = settled(futures)
    for error in errors.values():
        raise KafkaException(error)
    return results


def internal_topics(admin: AdminClient, names: Iterable[str]) -> set[str]:
    """Return the internal topics among these."""
    if not (all_names := [*names]):
        return set()
    found = results_of(admin.describe_topics(TopicCollection(all_names)))
    return {name for name, topic in found.items() if topic.is_internal}


@contextmanager
def errors_as_refusals() -> Iterator[None]:
    """Turn an error of librdkafka into a Refusal."""
    try:
        yield
    except KafkaException as error:
        raise Refusal(error_text(error)) from error
    except ValueError as error:
        raise Refusal(str(error)) from error


def error_text(raised: KafkaException) -> str:
    """Return the broker's error message, or else librdkafka's."""
    error: Any = raised.args[0]
    return clean_error(error.str()) if isinstance(error, KafkaError) else str(error)
