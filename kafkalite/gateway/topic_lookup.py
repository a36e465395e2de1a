"""TopicLookup: partition counts of the topics of messages, requested from the broker.

A topic is requested when its first message arrives, and periodically.  A request may block, so a
thread makes them, each with a short timeout and in turn.  Until the topic is known its messages are
parked, and when much is parked the gateway receives nothing.  Messages for a topic that does not
exist and cannot be created are refused for a while, before it is requested again; while the broker
is unreachable the requests are retried for longer.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from kafkalite._ext.gateway_receiver import MessageGatherer, Topic
from kafkalite.errors import (
    InvalidTopicException,
    KafkaError,
    Retriable,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from kafkalite.gateway.gateway_metrics import shown
from kafkalite.gateway.loop_calls import LoopCalls
from kafkalite.transport.reactor import Reactor

REQUEST_TIMEOUT_S = 1.0
"""Timeout of one request: a broker that is reachable creates a topic sooner, or never."""
RETRY_TIMEOUT_S = 10.0
"""Time for which requests to an unreachable broker are retried."""
RETRY_BACKOFF_S = 0.05
REFUSAL_MS = 5_000
REFRESH_MS = 30_000
"""Interval of the check for added partitions."""
REFUSED_MAX = 10_000
TOPIC_NAME = re.compile(rb"[a-zA-Z0-9._-]{1,249}", re.ASCII)
"""Pattern of possible topic names; the broker checks the rest."""


class TopicLookup:
    """Requests topics for a MessageGatherer.

    `count_of` is Producer.partitions_for; `on_resolved()` is called when parked messages were
    gathered or refused.
    """

    def __init__(
        self,
        reactor: Reactor,
        calls: LoopCalls,
        count_of: Callable[[str, float], int],
        on_resolved: Callable[[], object],
    ) -> None:
        self.gathering: MessageGatherer
        self._reactor = reactor
        self._calls = calls
        self._count_of = count_of
        self._on_resolved = on_resolved
        self._refused: OrderedDict[bytes, Topic] = OrderedDict()
        self._requests: SimpleQueue[tuple[Topic, float] | None] = SimpleQueue()
        """Topics to request, and the time of the first attempt."""
        self._thread = threading.Thread(target=self._run, name="topics", daemon=True)
        self._thread.start()
        self._timer = reactor.call_later(REFRESH_MS, self._refresh_all)

    def request(self, name: bytes) -> Topic:
        """Return the topic of this name, and request it from the broker."""
        topic = Topic(name.decode(errors="replace"))
        if not TOPIC_NAME.fullmatch(name):
            error = InvalidTopicException(f"{shown(name)} is not a valid topic name.")
            self.gathering.refuse(topic, error.code, str(error))
            return topic
        self.gathering.topics[name] = topic
        self._enqueue(topic)
        return topic

    def _enqueue(self, topic: Topic) -> None:
        self._requests.put((topic, time.monotonic()))

    def refresh(self, name: str) -> None:
        """Request a topic after an error, since it may have been deleted."""
        topic = self.gathering.topics.get(name.encode())
        if topic is not None and topic.partition_count:
            self._enqueue(topic)

    def _refresh_all(self) -> None:
        for topic in list(self.gathering.topics.values()):
            if topic.partition_count and not topic.refusal:
                self._enqueue(topic)
        self._timer = self._reactor.call_later(REFRESH_MS, self._refresh_all)

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            topic, since_s = request
            count = 0
            error: KafkaError | None = None
            try:
                count = self._count_of(topic.name, REQUEST_TIMEOUT_S)
            except KafkaError as raised:
                is_unknown = isinstance(raised, UnknownTopicOrPartition)
                is_retriable = isinstance(raised, Retriable) and not is_unknown
                if is_retriable and time.monotonic() < since_s + RETRY_TIMEOUT_S:
                    time.sleep(RETRY_BACKOFF_S)
                    self._requests.put(request)  # after the other topics
                    continue
                error = raised
            except Exception as raised:
                error = UnknownServerError(f"the metadata request failed: {raised}")
            self._calls.call_soon(partial(self._resolve, topic, count, error))

    def _resolve(self, topic: Topic, count: int, error: KafkaError | None) -> None:
        if self.gathering.topics.get(topic.name.encode()) is topic:
            self._apply(topic, count, error)
            self._on_resolved()

    def _apply(self, topic: Topic, count: int, error: KafkaError | None) -> None:
        gathering = self.gathering
        raw = topic.name.encode()
        if error is not None:
            if topic.partition_count:
                if isinstance(error, Retriable):
                    return  # keep the known count; records that cannot be written get an error
                gathering.remove(topic)
                return
            gathering.refuse(topic, error.code, str(error))
            self._refused[raw] = topic
            while len(self._refused) > REFUSED_MAX:
                gathering.remove(self._refused.popitem(last=False)[1])
            self._reactor.call_later(REFUSAL_MS, lambda: self._expire_refusal(raw, topic))
        elif count < topic.partition_count:  # another topic of the same name
            gathering.remove(topic)
        elif count > topic.partition_count:
            now_ms = self._reactor.clock.wall_ms()
            gathering.set_partitions(topic, count, random.randrange(count), now_ms)

    def _expire_refusal(self, raw: bytes, topic: Topic) -> None:
        if self._refused.get(raw) is topic:
            del self._refused[raw]
            self.gathering.remove(topic)

    def close(self) -> None:
        """Stop the requests; one in progress is not waited for."""
        self._timer.cancel()
        self._requests.put(None)
