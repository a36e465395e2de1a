"""ShareConsumer: reads topics as a member of a share group, which acknowledges each record.

    with ShareConsumer("127.0.0.1:9092", topics=["jobs"], group="workers") as consumer:
        for message in consumer:
            try:
                work(message.value)
            except Exception:
                message.release()                       # deliver it once more
                                                        # otherwise the next step accepts it

Members of a share group take records from the same partitions.  Each record is locked for the
member that acquired it, until it is acknowledged or the lock ends
(group.share.record.lock.duration.ms); then it is delivered again, as often as the group allows
(KIP-932).

Not thread-safe: one thread uses a consumer at a time.  Messages may be acknowledged by any thread;
another thread may close the consumer.  A forked child may only close it.

Left out: shared memory and segment files of a broker on this host; records come over TCP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self, TypeAlias, Unpack

from kafkalite.client.net.arguments import checked_integer
from kafkalite.client.net.cluster import ClientClosed
from kafkalite.client.net.deadline import Deadline, limit_s
from kafkalite.client.net.settings import Bootstrap
from kafkalite.client.net.topology import TopicPartition
from kafkalite.client.share.share_messages import AcquiredItem, ShareBatch, ShareMessage
from kafkalite.client.share.share_reader import ShareReader
from kafkalite.config.client_keywords import ShareConsumerConfig
from kafkalite.errors import KafkaError

CLOSE_TIMEOUT_S = 5.0
"""Default seconds to end the sessions and to leave the group."""

AcknowledgementCallback: TypeAlias = Callable[
    [TopicPartition, list[range], KafkaError | None], Any
]
"""Function of a partition, offsets, and the error of their acknowledgement or None."""


class ShareConsumer:
    """Kafka consumer of a share group.

    A timeout is in seconds.  In the implicit mode (`share_acknowledgement_mode`) each call accepts
    what the previous one returned, as far as the program has not acknowledged it.  An exception
    that ends the with block leaves that out: what was not acknowledged is delivered again.
    """

    def __init__(
        self,
        bootstrap: Bootstrap = None,
        topics: str | Iterable[str] | None = None,
        group: str | None = None,
        *,
        on_acknowledge: AcknowledgementCallback | None = None,
        **settings: Unpack[ShareConsumerConfig],
    ) -> None:
        """Create a consumer; it connects when it is first used.

        Args:
            bootstrap: Brokers as HOST:PORT, a list of them, or a mapping of Kafka's keys.
            topics: Names of topics.  None: subscribe() follows.
            group: Share group to join (group.id).
            on_acknowledge: Function of a partition, a list of ranges of offsets, and an error or
                None, called during calls of the consumer with the outcome of acknowledgements.
            settings: Kafka's keys with underscores (`max_poll_records=100`).

        Raises:
            InvalidConfig: A setting is unknown, invalid or given twice, there is no group, or a
                topic is a pattern.
            TypeError: `topics` is not a name or a list of names.
        """
        self._reader = ShareReader(bootstrap, topics, group, settings)
        self._on_acknowledge = on_acknowledge

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Close the consumer, from any thread; a second call does nothing.

        Acknowledgements are sent, records that were not acknowledged are released, and the member
        leaves its group.  In the implicit mode what was returned last is accepted, if the thread
        that closes the consumer is the one that called last.

        Args:
            timeout: Seconds for all of it.
        """
        self._close(timeout, accepts=True)

    def _close(self, timeout: float, *, accepts: bool) -> None:
        self._reader.close(timeout, accepts=accepts)
        self._report()

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._reader.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(CLOSE_TIMEOUT_S, accepts=kind is None)

    # Subscription.

    def subscribe(self, topics: str | Iterable[str]) -> None:
        """Read these topics instead of the current ones; the next call for records joins the group.

        Args:
            topics: One or several names.

        Raises:
            InvalidConfig: There is no name, or one is a pattern.
        """
        self._reader.subscribe(topics)

    def unsubscribe(self) -> None:
        """Leave the group.  What was returned can still be acknowledged."""
        self._reader.unsubscribe()

    @property
    def subscription(self) -> list[str]:
        """The topics that are subscribed."""
        return self._reader.topics

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that the group has assigned; other members may have them as well."""
        return self._reader.assignment

    # Records.

    def poll(self, timeout: float | None = None) -> ShareMessage | None:
        """Return the next message.

        Args:
            timeout: Seconds to wait; None waits without limit.

        Returns:
            The message, or None if none arrived in time.

        Raises:
            KafkaError: An error that is not retriable.
            RuntimeError: Nothing is subscribed, or another thread uses the consumer.
            ClientClosed: The consumer was closed.
        """
        return next(iter(self._next(1, Deadline(limit_s(timeout)))), None)

    def consume(self, num_messages: int = 1, timeout: float | None = None) -> list[ShareMessage]:
        """Return the messages that are there, waiting for the first one.

        Args:
            num_messages: Maximum number of messages.
            timeout: Seconds to wait for the first one; None waits without limit.

        Returns:
            Messages, by partition in the order of their offsets; none if the time is up.

        Raises:
            ValueError: `num_messages` is less than 1.
            KafkaError: An error that is not retriable.
        """
        count = checked_integer(num_messages, "num_messages must be an integer")
        if count < 1:
            raise ValueError(f"num_messages must be at least 1, not {num_messages}")
        deadline = Deadline(limit_s(timeout))
        messages = self._next(count, deadline)
        while messages and len(messages) < count and self._reader.has_more():
            messages += self._reader.take(count - len(messages))
        return messages  # not reported after: a callback that raises must not lose them

    def __iter__(self) -> Iterator[ShareMessage]:
        """Iterate over messages, waiting for each; a step accepts the message before.

        Ends after consumer.timeout.ms without a message, or when another thread closes the
        consumer.
        """
        while True:
            try:
                messages = self._next(1, self._reader.poll_deadline(None))
            except ClientClosed:
                return
            if not messages:
                return
            yield messages[0]

    def _next(self, count: int, deadline: Deadline) -> list[ShareMessage]:
        reader = self._reader
        reader.begin_call()
        try:
            found = reader.fill(deadline)
        finally:
            self._report()
        return reader.take(count) if found else []

    def batches(
        self,
        columns: Sequence[str] | None = None,
        timeout: float | None = None,
        timestamp_unit: str = "ms",
    ) -> Iterator[ShareBatch]:
        """Return an iterator over batches of columns, each of one partition and delivery count.

        Args:
            columns: Columns to decode, as for Consumer.batches(); None: all.
            timeout: Seconds to wait for the next batch; None: consumer.timeout.ms, by default
                without limit.
            timestamp_unit: "ms", "us" or "ns".

        Returns:
            An iterator of ShareBatch; a step accepts the batch before, in the implicit mode.

        Raises:
            ImportError: pyarrow is not installed.
            InvalidConfig: An unknown column or timestamp unit.
        """
        wanted = self._reader.columns(columns, timestamp_unit)
        reader = self._reader

        def found() -> Iterator[ShareBatch]:
            while True:
                try:
                    reader.begin_call()
                    is_found = reader.fill_columns(reader.poll_deadline(timeout), wanted)
                except ClientClosed:
                    return
                finally:
                    self._report()
                if not is_found:
                    return
                batch = reader.take_columns()
                if batch is not None:
                    yield batch

        return found()

    # Acknowledgements.

    def commit(self, timeout: float | None = None) -> dict[TopicPartition, KafkaError | None]:
        """Send what was acknowledged, and wait for the responses.

        In the implicit mode what was returned before is accepted.

        Args:
            timeout: Seconds to wait; None: default.api.timeout.ms.

        Returns:
            For each partition with acknowledgements since the last commit None, or its first error:
            InvalidRecordState if a lock had ended, RequestTimedOut if a response is missing.

        Raises:
            RuntimeError: Another thread uses the consumer.
        """
        self._reader.begin_call()
        try:
            return self._reader.commit(timeout)
        finally:
            self._report()

    def renew(self, *items: AcquiredItem, timeout: float | None = None) -> None:
        """Restart the locks of records that take longer; their delivery counts stay.

        Args:
            items: Messages or batches that are not acknowledged yet.
            timeout: Seconds to wait for the responses; None: default.api.timeout.ms.

        Raises:
            ValueError: One is acknowledged already.
            InvalidRecordState: A lock had ended, or the group does not allow renewals.
            UnsupportedVersion: The broker does not know renewals (before Kafka 4.2).
            KafkaError: Another error of the broker.
        """
        try:
            self._reader.renew(items, timeout)
        finally:
            self._report()

    def _report(self) -> None:
        """Call on_acknowledge with the outcomes that have arrived."""
        for outcome in self._reader.reports():
            if self._on_acknowledge is not None:
                self._on_acknowledge(*outcome)
