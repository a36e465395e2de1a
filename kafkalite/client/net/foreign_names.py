"""Method names of other Kafka clients that are missing here, each with a hint what to use."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar

T = TypeVar("T")

_TRANSACTIONS = "use `with producer.transaction():`, which begins, commits and aborts"
_START = (
    "it connects when it is first used; use it in a with block (asynchronous clients: async with),"
    " or close() it at the end"
)

PRODUCER = {
    "abort_transaction": _TRANSACTIONS,
    "begin_transaction": _TRANSACTIONS,
    "bootstrap_connected": "use partitions_for(topic), which connects",
    "commit_transaction": _TRANSACTIONS,
    "create_batch": "send() gathers records into batches; see batch_size and linger_ms",
    "list_topics": "use partitions_for(topic), or `kafkalite topic list`",
    "poll": "callbacks run by themselves in a background thread; flush() waits for all records",
    "produce": "use send(topic, value, key=..., on_delivery=...)",
    "purge": "use close(0), which fails undelivered records",
    "send_and_wait": "use send(...).result(); with AsyncProducer: await (await send(...))",
    "send_offsets_to_transaction": "use commit_offsets() of producer.transaction()",
    "start": _START,
    "stop": "use close()",
}
CONSUMER = {
    "beginning_offsets": "use watermarks(partition).low",
    "consume": "use getmany(timeout, max_records)",
    "end_offsets": "use watermarks(partition).high",
    "get_watermark_offsets": "use watermarks(partition)",
    "getmany": "use consume(n, timeout) or batches(); AsyncConsumer has getmany()",
    "getone": "use poll(), or iterate",
    "highwater": "use watermarks(partition).high",
    "incremental_assign": "use assign() with all partitions; current ones keep their position",
    "incremental_unassign": "use assign() with the partitions to keep",
    "last_stable_offset": "use watermarks(partition).high with isolation_level='read_committed'",
    "list_topics": "use `kafkalite topic list`",
    "memberid": "use group_metadata().member_id",
    "partitions_for_topic": "use assignment, or Producer.partitions_for(topic)",
    "seek_to_committed": "use committed(partition) and seek(partition, offset)",
    "start": _START,
    "stop": "use close()",
    "store_offsets": "use commit({partition: offset})",
    "subscription": "use assignment, which lists the partitions that are read",
    "topics": "use `kafkalite topic list`",
}


class MissingMethod:
    """A descriptor for a missing name; access raises AttributeError with the hint."""

    def __init__(self, name: str, hint: str) -> None:
        self._name = name
        self._hint = hint

    def __get__(self, owner: object, kind: type) -> NoReturn:
        raise AttributeError(
            f"{kind.__name__} has no {self._name}(): {self._hint}", name=self._name, obj=owner
        )


def hinting(hints: dict[str, str]) -> Callable[[type[T]], type[T]]:
    """Return a class decorator that adds hints for these names.

    `__getattr__` would do the same, but slow down each look-up of any name of the class: by a
    third of the time of Producer.send().
    """

    def decorate(kind: type[T]) -> type[T]:
        for name, hint in hints.items():
            if not hasattr(kind, name):
                setattr(kind, name, MissingMethod(name, hint))
        return kind

    return decorate
