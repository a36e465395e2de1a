from collections.abc import Callable
from typing import final

@final
class DealerRequest:
    identity: bytes
    @property
    def size(self) -> int: ...
    def fail(self, code: int, sentence: str) -> None: ...

@final
class OpenBatch:
    topic: str
    partition: int
    content: bytearray
    size: int
    count: int
    base_timestamp: int
    max_timestamp: int
    began_ms: int
    def settle(self, code: int, base_offset: int, sentence: str) -> list[DealerRequest]: ...
    def split(
        self, payloads: list[bytes], counts: list[int], max_timestamps: list[int]
    ) -> list[OpenBatch]: ...

@final
class Topic:
    name: str
    partition_count: int
    parked: list[object]
    refusal: int
    sentence: str
    def __init__(self, name: str) -> None: ...

@final
class MessageGatherer:
    topics: dict[bytes, Topic]
    closed: list[OpenBatch]
    open_size: int
    parked_size: int
    record_count: int
    def __init__(
        self,
        batch_size: int,
        record_size_max: int,
        ask: Callable[[bytes], Topic],
        refused: Callable[[DealerRequest | None, bytes, int, str], object],
    ) -> None: ...
    def set_partitions(
        self, topic: Topic, partition_count: int, keyless: int, now_ms: int
    ) -> None: ...
    def refuse(self, topic: Topic, code: int, sentence: str) -> None: ...
    def remove(self, topic: Topic) -> None: ...
    def close_older(self, until_ms: int) -> int: ...

@final
class MessageReceiver:
    message_count: int
    size: int
    def __init__(
        self,
        gathering: MessageGatherer,
        socket: int,
        library: str,
        routed: bool,
        frame_size_max: int,
    ) -> None: ...
    def receive(self, count_max: int, size_max: int, now_ms: int) -> bool: ...
    def respond(self, request: DealerRequest) -> int: ...
