"""Names that other Kafka clients use for what is called otherwise here, each with what to use."""

from __future__ import annotations

PRODUCER = {
    "produce": "use send(topic, value, key=..., on_delivery=...)",
    "poll": "callbacks run by themselves in a background thread; flush() waits for all records",
    "begin_transaction": "transactions come with a later version",
    "init_transactions": "transactions come with a later version",
    "list_topics": "use partitions_for(topic), or `kafkalite topic list`",
}
CONSUMER = {
    "beginning_offsets": "use watermarks(partition).low",
    "end_offsets": "use watermarks(partition).high",
    "get_watermark_offsets": "use watermarks(partition)",
    "getmany": "use consume(n, timeout) or batches(); AsyncConsumer has getmany()",
    "list_topics": "use `kafkalite topic list`",
    "store_offsets": "use commit({partition: offset})",
    "unsubscribe": "use subscribe() with the topics to read, or close()",
}


def missing(owner: object, name: str, hints: dict[str, str]) -> AttributeError:
    """Return the error for an attribute that is not there, with what to use instead if known."""
    kind = type(owner).__name__
    hint = hints.get(name)
    if hint is None:
        return AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=owner)
    return AttributeError(f"{kind} has no {name}(): {hint}", name=name, obj=owner)
