from typing import Any, TypeAlias

BOOL: int
INT8: int
INT16: int
UINT16: int
INT32: int
INT64: int
FLOAT64: int
UUID: int
STRING: int
BYTES: int
RECORDS: int
STRUCT: int
ARRAY: int
UNITS_MAX: int

Step: TypeAlias = tuple[str, int, int, bool, int, object, Plan | None]
Lacking: TypeAlias = tuple[str, object, bool]

class Fields(dict[str, Any]):
    def __getattr__(self, name: str) -> Any: ...

class Plan:
    flexible: bool
    size_min: int
    def __init__(
        self, fields: tuple[Step, ...], lacking: tuple[Lacking, ...], flexible: bool
    ) -> None: ...

def read(
    plan: Plan,
    buffer: bytes | memoryview,
    position: int = 0,
    units_max: int = ...,
) -> Fields | int: ...
def write(plan: Plan, values: dict[str, Any]) -> bytes: ...
