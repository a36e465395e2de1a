"""Text format: each value is a string column by itself."""

from __future__ import annotations

import pyarrow as pa

from pyspark_kafkalite.decoding.sifting import Bad, sift, struct_of


class TextFormat:
    def __init__(self, name: str = "value") -> None:
        self.schema = pa.schema([(name, pa.string())])
        self._kind = struct_of(self.schema)

    def read(self, values: pa.Array) -> tuple[pa.Array, Bad]:
        return sift(values, self._parse, self._kind)

    def _parse(self, values: pa.Array) -> pa.Array:
        return pa.StructArray.from_arrays([values.cast(pa.string())], fields=list(self.schema))
