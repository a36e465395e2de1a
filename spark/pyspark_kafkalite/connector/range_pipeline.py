"""Per-range work in an executor: fetch, decode, filter, project, map.

A RangePipeline is created on the driver, where invalid options are a ValueError, and pickled.  The
source uses the first two steps and leaves the rest to Spark; the fast path (fast_path.py) uses all
of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafkalite.connector import bad_row_counts, range_batches
from pyspark_kafkalite.connector.offset_ranges import OffsetRange
from pyspark_kafkalite.connector.source_options import SourceOptions
from pyspark_kafkalite.decoding import Decode, decode_of
from pyspark_kafkalite.decoding.ddl import arrow_schema

Filter = Any
"""A pyarrow.compute.Expression, or a function from a RecordBatch to a boolean mask."""
MapArrow = Callable[[pa.RecordBatch], pa.RecordBatch]


def decoded(
    decode: str | Decode | None, options: Mapping[str, Any], chosen: SourceOptions
) -> Decode | None:
    """Return the decoder for these options, or None."""
    if isinstance(decode, Decode):
        return decode
    topic = chosen.subscribe[0] if len(chosen.subscribe) == 1 else None
    return decode_of(options, chosen.settings, topic)


def spark_schema(schema: pa.Schema) -> Any:
    """Return the Spark schema of an Arrow schema."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


class RangePipeline:
    """Pipeline from an offset range to batches of the requested columns."""

    def __init__(
        self,
        options: SourceOptions,
        decode: Decode | None = None,
        columns: Sequence[str] | None = None,
        filter: Filter | None = None,
        map_arrow: MapArrow | None = None,
        schema: Any = None,
    ) -> None:
        if (map_arrow is None) != (schema is None):
            raise ValueError("map_arrow requires schema, the columns of the batches it returns,"
                             " and schema requires map_arrow.")  # fmt: skip
        self._options = options
        self._decode = decode
        self._filter = filter
        self._map = map_arrow
        self._names, self._fetched = self._chosen(columns)
        whole = range_batches.schema_of(self._fetched)
        if decode is not None:
            whole = decode.schema_of(whole)
        self._projected = pa.schema([whole.field(name) for name in self._names])
        self.schema = self._projected if schema is None else arrow_schema(schema)

    @property
    def decoded_names(self) -> list[str]:
        """The columns that are decoded from the value."""
        return [] if self._decode is None else list(self._decode.columns.names)

    def of(self, offset_range: OffsetRange) -> Iterator[pa.RecordBatch]:
        """Yield the decoded rows of a range, and report the number of bad rows to the driver."""
        options = self._options
        bad_rows = 0
        try:
            for batch in range_batches.fetched(
                offset_range,
                self._fetched,
                options.settings,
                fail_on_data_loss=options.fail_on_data_loss,
                topic_id=offset_range.topic_id,
                timeout_s=options.timeout_s,
            ):
                decoded = batch if self._decode is None else self._decode(batch)
                bad_rows += len(batch) - len(decoded)
                yield from self.transformed(decoded)
        finally:
            if bad_rows:
                bad_row_counts.report(offset_range, bad_rows)

    def transformed(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a decoded batch that pass the filter, converted by map_arrow."""
        for each in filtered(batch, self._filter):
            if len(each):
                each = each.select(self._names)
                yield each if self._map is None else self._mapped(self._map(each))

    def _mapped(self, batch: Any) -> pa.RecordBatch:
        """Return the result of map_arrow, cast to the declared schema."""
        if isinstance(batch, pa.RecordBatch) and batch.schema.equals(self.schema):
            return batch
        names = getattr(getattr(batch, "schema", None), "names", None)
        if not isinstance(batch, pa.RecordBatch) or set(self.schema.names) - set(names or ()):
            raise ValueError(
                f"map_arrow must return RecordBatches with the columns of schema,"
                f" {', '.join(self.schema.names)}; it returned {type(batch).__name__}"
                f" {names or ''}."
            )
        columns = [batch.column(field.name).cast(field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    # Column selection.

    def _chosen(self, columns: Sequence[str] | None) -> tuple[list[str], list[str]]:
        """Return the names of the output columns, and of the columns to fetch for them."""
        own = self.decoded_names
        record = [name for name in range_batches.TYPES if self._decode is None or name != "value"]
        if columns is None:
            default = [name for name in record if name in range_batches.COLUMNS]
            names = [*default, *own]
            if self._decode is not None:
                self._decode.schema_of(range_batches.schema_of(default))
        else:
            names = range_batches.checked(columns, [*record, *own])
        needed = {name for name in names if name not in own}
        needed |= set(self._decode.needs if self._decode is not None else ())
        needed |= self._looked_at([name for name in record if name not in own], own)
        return names, [name for name in range_batches.TYPES if name in needed]

    def _looked_at(self, record: list[str], own: list[str]) -> set[str]:
        """Return the record's columns that the filter needs, found on an empty batch."""
        if self._filter is None:
            return set()
        kinds = dict(range_batches.TYPES)
        if self._decode is not None:
            kinds |= {field.name: field.type for field in self._decode.columns}
        looked_at = set()
        for missing in record:
            rest = [(name, kinds[name]) for name in (*record, *own) if name != missing]
            empty = pa.RecordBatch.from_arrays([pa.nulls(0, k) for _, k in rest],
                                               schema=pa.schema(rest))  # fmt: skip
            try:
                filtered(empty, self._filter)
            except Exception:  # a user's function may raise anything for a missing column
                looked_at.add(missing)
        return looked_at


def filtered(batch: pa.RecordBatch, keep: Filter | None) -> list[pa.RecordBatch]:
    """Return the rows that the filter selects."""
    if keep is None:
        return [batch]
    if isinstance(keep, pc.Expression):
        return list(pa.Table.from_batches([batch]).filter(keep).to_batches())
    mask = keep(batch)
    if isinstance(mask, pa.ChunkedArray):
        mask = mask.combine_chunks()
    if not isinstance(mask, pa.Array):
        mask = pa.array(mask, pa.bool_())
    if not pa.types.is_boolean(mask.type) or len(mask) != len(batch):
        raise ValueError(f"filter must return a mask of {len(batch)} booleans, not {len(mask)}"
                         f" of {mask.type}.")  # fmt: skip
    return [batch.filter(mask)]
