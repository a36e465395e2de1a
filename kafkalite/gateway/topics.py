"""Topics: partition counts of the topics of messages, requested from the broker.

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

from kafkalite._ext.gateway_intake import Gathering, Topic
from kafkalite.errors import (
    InvalidTopicException,
    KafkaError,
    Retriable,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from kafkalite.gateway.counts import shown
from kafkalite.gateway.post import Post
from kafkalite.transport.reactor import Reactor

ASK_S = 1.0
"""Timeout of one request: a broker that is reachable creates a topic sooner, or never."""
ASK_S_MAX = 10.0
"""Time for which requests to an unreachable broker are retried."""
REST_S = 0.05
REFUSED_MS = 5_000
AGAIN_MS = 30_000
"""Interval of the check for added partitions."""
REFUSED_MAX = 10_000
LEGAL = re.compile(rb"[a-zA-Z0-9._-]{1,249}", re.ASCII)
"""Pattern of possible topic names; the broker checks the rest."""


class Topics:
    """Requests topics for a Gathering.

    `count_of` is Producer.partitions_for; `learned()` is called when parked messages have gone on.
    """

    def __init__(
        self,
        reactor: Reactor,
        post: Post,
        count_of: Callable[[str, float], int],
        learned: Callable[[], object],
    ) -> None:
        self.gathering: Gathering
        self._reactor = reactor
        self._post = post
        self._count_of = count_of
        self._learned = learned
        self._refused: OrderedDict[bytes, Topic] = OrderedDict()
        self._asked: SimpleQueue[tuple[Topic, float] | None] = SimpleQueue()
        """Topics to request, and the time of the first attempt."""
        self._thread = threading.Thread(target=self._run, name="topics", daemon=True)
        self._thread.start()
        self._timer = reactor.call_later(AGAIN_MS, self._ask_again)

    def ask(self, name: bytes) -> Topic:
        """Return the topic of this name, and request it from the broker."""
        topic = Topic(name.decode(errors="replace"))
        if not LEGAL.fullmatch(name):
            fault = InvalidTopicException(f"{shown(name)} cannot be a topic's name.")
            self.gathering.refuse(topic, fault.code, str(fault))
            return topic
        self.gathering.topics[name] = topic
        self._want(topic)
        return topic

    def _want(self, topic: Topic) -> None:
        self._asked.put((topic, time.monotonic()))

    def look_again(self, name: str) -> None:
        """Request a topic after an error, since it may have been deleted."""
        topic = self.gathering.topics.get(name.encode())
        if topic is not None and topic.partition_count:
            self._want(topic)

    def _ask_again(self) -> None:
        for topic in list(self.gathering.topics.values()):
            if topic.partition_count and not topic.refusal:
                self._want(topic)
        self._timer = self._reactor.call_later(AGAIN_MS, self._ask_again)

    def _run(self) -> None:
        while (wanted := self._asked.get()) is not None:
            topic, since_s = wanted
            count = 0
            fault: KafkaError | None = None
            try:
                count = self._count_of(topic.name, ASK_S)
            except KafkaError as said:
                unknown = isinstance(said, UnknownTopicOrPartition)
                passes = isinstance(said, Retriable) and not unknown
                if passes and time.monotonic() < since_s + ASK_S_MAX:
                    time.sleep(REST_S)
                    self._asked.put(wanted)  # after the other topics
                    continue
                fault = said
            except Exception as said:
                fault = UnknownServerError(f"the broker could not be asked: {said}")
            self._post.leave(partial(self._learn, topic, count, fault))

    def _learn(self, topic: Topic, count: int, fault: KafkaError | None) -> None:
        if self.gathering.topics.get(topic.name.encode()) is topic:
            self._apply(topic, count, fault)
            self._learned()

    def _apply(self, topic: Topic, count: int, fault: KafkaError | None) -> None:
        gathering = self.gathering
        raw = topic.name.encode()
        if fault is not None:
            if topic.partition_count:
                if isinstance(fault, Retriable):
                    return  # keep the known count; records that cannot be written get an error
                gathering.forget(topic)
                return
            gathering.refuse(topic, fault.code, str(fault))
            self._refused[raw] = topic
            while len(self._refused) > REFUSED_MAX:
                gathering.forget(self._refused.popitem(last=False)[1])
            self._reactor.call_later(REFUSED_MS, lambda: self._forgive(raw, topic))
        elif count < topic.partition_count:  # another topic of the same name
            gathering.forget(topic)
        elif count > topic.partition_count:
            gathering.know(topic, count, random.randrange(count), self._reactor.clock.wall_ms())

    def _forgive(self, raw: bytes, topic: Topic) -> None:
        if self._refused.get(raw) is topic:
            del self._refused[raw]
            self.gathering.forget(topic)

    def close(self) -> None:
        """Stop the requests; one in progress is not waited for."""
        self._timer.cancel()
        self._asked.put(None)
