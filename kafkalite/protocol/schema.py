"""MessageSchema and Api: schemas, their versions, and the encoding and decoding of each version.

An Api is one request and its response.  schemas/ defines their fields with types.py.  The plan for
one message and version is built when it is first used, and run by _ext.codec.

    request = METADATA.request.read(12, frame, position)    # Fields, or InvalidRequest
    body = METADATA.response.write(12, {"topics": [...]})   # bytes without the header (frame.py)

Decoding returns every field of the schema; those that the version lacks have their default.
Encoding accepts any of the fields; those that the version lacks are dropped.

BY_KEY holds every Api whose module has been imported; `import kafkalite.protocol.schemas` imports
all that clients may use.
"""

from __future__ import annotations

from kafkalite._ext import codec
from kafkalite._ext.codec import Fields, Plan
from kafkalite.errors import InvalidRequest, UnsupportedVersion
from kafkalite.protocol.types import Array, Field, Struct, versions_of

__all__ = ["BY_KEY", "Api", "Fields", "MessageSchema"]

API_VERSIONS_KEY = 18
RESPONSE_UNITS_MAX = 1 << 24
"""Maximum units of a response that a client decodes, like UNITS_MAX for requests in _ext.codec."""

BY_KEY: dict[int, Api] = {}


class MessageSchema:
    """One message in all of its versions.

    `may_drop`: True if a field with any value may be dropped in a version that lacks it.
    `units_max`: maximum number of units that a decoded message may have (_ext.codec).
    """

    def __init__(
        self,
        name: str,
        struct: Struct,
        *,
        versions: str,
        flexible: str = "none",
        may_drop: bool = True,
        units_max: int = codec.UNITS_MAX,
    ) -> None:
        self.name = name
        self.struct = struct
        self.versions = versions_of(versions)
        self.flexible = versions_of(flexible)
        self.may_drop = may_drop
        self.units_max = units_max
        self.plans: dict[int, Plan] = {}

    def read(self, version: int, buffer: bytes | memoryview, position: int = 0) -> Fields:
        """Decode the bytes from `position` on; raise InvalidRequest if they are not valid."""
        fields = codec.read(self.plan(version), buffer, position, self.units_max)
        if isinstance(fields, int):
            raise InvalidRequest(f"The bytes are not a valid {self.name} of version {version}.")
        return fields

    def write(self, version: int, values: dict[str, object]) -> bytes:
        """Return the bytes of these values; missing ones have their defaults."""
        try:
            return codec.write(self.plan(version), values)
        except LookupError as missing:
            raise UnsupportedVersion(
                f"{self.name} version {version} has no field {missing.args[0]}."
            ) from None

    def plan(self, version: int) -> Plan:
        plan = self.plans.get(version)
        if plan is None:
            if version not in self.versions:
                raise UnsupportedVersion(f"{self.name} has no version {version}.")
            flexible = version in self.flexible
            plan = self.plans[version] = plan_of(self.struct, version, flexible, self.may_drop)
        return plan


class Api:
    """A request and its response, under one API key."""

    def __init__(
        self,
        key: int,
        name: str,
        *,
        versions: str,
        request: Struct,
        response: Struct,
        flexible: str = "none",
    ) -> None:
        self.key = key
        self.name = name
        assert key not in BY_KEY, f"{name} and {BY_KEY[key].name} have the same key {key}"
        BY_KEY[key] = self
        run = versions_of(versions)
        assert run.high is not None, "an API ends at its newest version"
        self.versions = (run.low, run.high)
        self.flexible = versions_of(flexible)
        self.request = MessageSchema(
            f"{name} request", request, versions=versions, flexible=flexible, may_drop=False
        )
        self.response = MessageSchema(
            f"{name} response",
            response,
            versions=versions,
            flexible=flexible,
            units_max=RESPONSE_UNITS_MAX,
        )

    def __repr__(self) -> str:
        return f"Api({self.key}, {self.name!r})"

    def request_header_flexible(self, version: int) -> bool:
        """Return True if the request's header has tags; the version may be unknown."""
        return version in self.flexible

    def response_header_flexible(self, version: int) -> bool:
        """Return True if the response's header has tags.

        ApiVersions never has them: a client must be able to read that response before it knows
        which versions the broker supports.
        """
        return self.key != API_VERSIONS_KEY and version in self.flexible


def plan_of(struct: Struct, version: int, flexible: bool, may_drop: bool) -> Plan:
    plain, tagged, lacking = [], [], []
    for name, field in struct.fields.items():
        if version not in field.versions:
            lacking.append((name, field.default, may_drop or field.ignorable))
        elif field.tag is None:
            plain.append(step_of(name, field, version, flexible, may_drop))
        else:
            tagged.append(step_of(name, field, version, flexible, may_drop))
    tagged.sort(key=lambda step: step[4])
    return Plan((*plain, *tagged), tuple(lacking), flexible)


def step_of(name: str, field: Field, version: int, flexible: bool, may_drop: bool) -> codec.Step:
    element = field.element if isinstance(field, Array) else field
    nested = plan_of(element, version, flexible, may_drop) if isinstance(element, Struct) else None
    tag = -1 if field.tag is None else field.tag
    nullable = version in field.nullable
    return (name, field.kind, element.kind, nullable, tag, field.default, nested)
