from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from typing_extensions import Buffer

from kafkalite.errors import KafkaError
from kafkalite.record_metadata import RecordMetadata

_Content = Buffer | str | None
_Pairs = Iterable[tuple[str, _Content]]
_Headers = _Pairs | Mapping[str, _Content]
_Append = Callable[[_Content, _Content, _Pairs | None, int], int]
_Serializer = Callable[[Any], _Content]
_OnDelivery = Callable[[KafkaError | None, RecordMetadata | None], object]
_Partitioner = Callable[[str, bytes | None, int], int]

class Delivery:
    """The outcome of one record: like a future, but it cannot be cancelled."""

    @property
    def batch(self) -> Any: ...
    @property
    def place(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    def __init__(self, batch: Any, place: int, timestamp: int) -> None: ...
    def done(self) -> bool: ...
    def result(self, timeout: float | None = None) -> RecordMetadata: ...
    def exception(self, timeout: float | None = None) -> KafkaError | None: ...
    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None: ...

class Piece:
    """Consecutive rows of a table that were sent in one batch, perhaps beside others."""

    @property
    def batch(self) -> Any: ...
    @property
    def place(self) -> int: ...
    @property
    def row_count(self) -> int: ...
    def __init__(self, batch: Any, place: int, row_count: int) -> None: ...

class TableLayout:
    """The columns of a schema that can be encoded without a conversion; -1: there is none."""

    def __init__(
        self,
        schema: Any,
        value: int,
        value_wide: bool,
        key: int,
        key_wide: bool,
        timestamp: int,
    ) -> None: ...

class OpenQueue:
    """The open batch of a partition queue, and the function that appends to it."""

    @property
    def index(self) -> int: ...
    @property
    def open_batch(self) -> Any: ...
    def __init__(self, index: int) -> None: ...
    def begin_batch(
        self, batch: Any, append: _Append, append_table: Callable[..., int] | None = None
    ) -> None: ...
    def end_batch(self) -> Any: ...

class OpenTopic:
    """A topic: its partition queues, and the current one for records without a key."""

    @property
    def name(self) -> str: ...
    @property
    def queues(self) -> list[Any]: ...
    sticky: Any
    def __init__(self, name: str) -> None: ...

class Gatherer:
    """Appends records to open batches; a subclass defines `_send_slowly` for all other cases."""

    @property
    def topics(self) -> dict[str, Any]: ...
    partitioner: _Partitioner | None
    key_serializer: _Serializer | None
    value_serializer: _Serializer | None
    is_open: bool
    def __init__(self, partitioner: _Partitioner | None = None) -> None: ...
    def gather_tables(
        self,
        table_type: type,
        layout_of: Callable[[Any], TableLayout],
        largest_max: int,
        table_size_max: int,
    ) -> None: ...
    def gather_table(self, topic: str, table: Any) -> Piece | None: ...
    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: _Headers | None = None,
        timestamp: int | datetime | None = None,
        partition: int | None = None,
        on_delivery: _OnDelivery | None = None,
        *,
        serializer: _Serializer | None = None,
    ) -> Delivery: ...
    def gather(
        self,
        topic: str,
        value: _Content,
        key: _Content,
        headers: _Pairs | None,
        timestamp: int | None,
        partition: int | None,
        on_delivery: _OnDelivery | None,
    ) -> Delivery: ...
