"""The topics that messages are for: asked of the broker when first met, and now and then again.

A question to the broker may take long, so a thread asks, for each topic a moment and in turn; until
it knows, what comes for a topic is parked, and when much is parked the gateway receives nothing.  A
topic that the broker does not know, or will not make, is refused for a while before it is asked for
again; while the broker itself is away it is asked for longer.
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
"""A broker that is there makes a topic sooner, or never will."""
ASK_S_MAX = 10.0
"""How long one that is not there is waited for."""
REST_S = 0.05
REFUSED_MS = 5_000
AGAIN_MS = 30_000
"""How often the broker is asked whether a topic has more partitions now."""
REFUSED_MAX = 10_000
LEGAL = re.compile(rb"[a-zA-Z0-9._-]{1,249}", re.ASCII)
"""The broker judges the rest."""


class Topics:
    """Asks for topics on behalf of a gathering; `count_of` is Producer.partitions_for, `learned()`
    is called when what was parked has gone on."""

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
        """Topics to ask for, and when that was first wanted."""
        self._thread = threading.Thread(target=self._run, name="topics", daemon=True)
        self._thread.start()
        self._timer = reactor.call_later(AGAIN_MS, self._ask_again)

    def ask(self, name: bytes) -> Topic:
        """A topic that is met for the first time."""
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
        """Something went wrong with it: it may be gone."""
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
                    self._asked.put(wanted)  # behind the others
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
                    return  # what is known still goes; what cannot be written will say so
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
        """Ask no more; a question that is under way is left alone."""
        self._timer.cancel()
        self._asked.put(None)
