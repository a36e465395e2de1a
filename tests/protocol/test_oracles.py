"""Our codec against kio and kafka-python, both ways, in every (API, version) they support.

Each message is written by us, read by the other and compared field by field, so that two fields of
one type cannot be swapped; then written by the other and compared byte by byte; then read by us.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import io
import uuid
from typing import Any

import pytest
from kio.index import KioIndexError, load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from kafkalite.protocol.schema import BY_KEY, Api, MessageSchema
from kafkalite.protocol.types import Int32, Struct, Uuid
from tests.protocol.oracles import KAFKA_PYTHON
from tests.protocol.values import filled, is_own, versions, with_defaults

# First every array filled, so that no field is missed; then random sizes; then with nulls.
WAYS: list[dict[str, Any]] = [{"counts": (2,)}, {}, {"null": 0.3}, {"null": 1.0}]
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MILLISECOND = datetime.timedelta(milliseconds=1)

# Versions newer than kio 0.6.5, by the name of their API.
NEWER_THAN_KIO = {
    ("ApiVersions", 5),
    ("DeleteGroups", 3),
    ("StreamsGroupDescribe", 1),
    ("StreamsGroupHeartbeat", 1),
    ("StreamsGroupTopologyDescriptionUpdate", 0),
    ("TxnOffsetCommit", 6),
    ("UnregisterController", 0),
}

# Fields that were renamed after the oracles were made.
RENAMED = {
    "acceptable_recovery_lag_legacy": "acceptable_recovery_lag",
    "cluster_authorized_operations": "authorized_operations",
    "enable_2pc": "enable2_pc",
    "generation_id_or_member_epoch": "generation_id",
    "topic_authorized_operations": "authorized_operations",
}


def sides(api: Api) -> list[MessageSchema]:
    return [api.request, api.response]


@pytest.mark.parametrize("api", BY_KEY.values(), ids=lambda api: api.name)
def test_kio_reads_and_writes_the_same_bytes(api):
    for version in versions(api):
        if (api.name, version) in NEWER_THAN_KIO:
            with pytest.raises(KioIndexError):
                load_request_schema(api.key, version)
            continue
        entities = load_request_schema(api.key, version), load_response_schema(api.key, version)
        for message, entity in zip(sides(api), entities, strict=True):
            for seed, how in enumerate(WAYS):
                values = filled(message, version, seed, **how)
                ours = message.write(version, values)
                theirs, size = entity_reader(entity)(ours, 0)
                assert size == len(ours)
                assert kio_values(message.struct, version, theirs) == values
                rewritten = io.BytesIO()
                entity_writer(entity)(rewritten, theirs)
                assert rewritten.getvalue() == ours
                expected = with_defaults(message.struct, version, values)
                assert message.read(version, ours) == expected


def kio_values(struct: Struct, version: int, entity: Any) -> dict[str, Any]:
    """Return a kio entity as our dict; its fields must have our order and names."""
    names = [
        name
        for name, field in struct.fields.items()
        if version in field.versions and not is_own(field)
    ]
    values = {}
    for name, theirs in zip(names, dataclasses.fields(entity), strict=True):
        assert theirs.name in (name, name.removesuffix("_ms"), RENAMED.get(name))
        values[name] = kio_value(struct.fields[name], version, getattr(entity, theirs.name))
    return values


def kio_value(field: Any, version: int, value: Any) -> Any:
    if isinstance(value, tuple):
        return [kio_value(field.element, version, one) for one in value]
    if dataclasses.is_dataclass(value):
        return kio_values(field, version, value)
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, datetime.timedelta):
        return value // MILLISECOND
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // MILLISECOND
    if value is None and isinstance(field, Uuid):
        return bytes(16)
    return value


@pytest.mark.parametrize(
    "api",
    [api for api in BY_KEY.values() if (api.key, "request") in KAFKA_PYTHON],
    ids=lambda api: api.name,
)
def test_kafka_python_reads_and_writes_the_same_bytes(api):
    for message, side in zip(sides(api), ("request", "response"), strict=True):
        oracle = KAFKA_PYTHON[api.key, side]
        for version in versions(api):
            if version > oracle.max_version:
                continue
            for seed, how in enumerate(WAYS):
                values = filled(message, version, seed, **how)
                if (api.name, side) == ("ApiVersions", "response"):
                    values["error_code"] = 0  # after any error it reads version 0, as it should
                ours = message.write(version, values)
                theirs = oracle.decode(ours, version=version)
                assert python_values(message.struct, version, theirs) == values
                theirs._header = None
                assert bytes(theirs.encode(version=version)) == ours


def test_kafka_python_has_at_least_fifty_apis():
    assert len(KAFKA_PYTHON) // 2 >= 50


def python_values(struct: Struct, version: int, container: Any) -> dict[str, Any]:
    values = {}
    for name, field in struct.fields.items():
        if version in field.versions and not is_own(field):
            theirs = name if name in container._struct.fields else RENAMED[name]
            values[name] = python_value(field, version, getattr(container, theirs))
    return values


def python_value(field: Any, version: int, value: Any) -> Any:
    if isinstance(value, list):
        return [python_value(field.element, version, one) for one in value]
    if isinstance(field, Struct):
        if value is None:
            return None if field.tag is None else field.default
        return python_values(field, version, value)
    if isinstance(field, Uuid):
        return bytes(16) if value is None else value.bytes
    if isinstance(field, Int32) and (value is None or isinstance(value, set)):
        bits = sum(1 << bit for bit in ({31} if value is None else value))
        return bits - (1 << 32) if bits >> 31 else bits
    return value
