"""kafka-python's classes by API key and side (request or response).

Importing them emits warnings about kafka-python's own code, which are ignored.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any


def kafka_python_classes() -> dict[tuple[int, str], Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        message = importlib.import_module("kafka.protocol.api_message").ApiMessage
        for room in ("admin", "consumer", "metadata", "producer"):
            importlib.import_module(f"kafka.protocol.{room}")
    found, waiting = {}, [message]
    while waiting:
        subclasses = waiting.pop().__subclasses__()
        waiting.extend(subclasses)
        for one in subclasses:
            if one._json is not None and one._class_version is None:
                found[one.API_KEY, one.type] = one
    return found


KAFKA_PYTHON = kafka_python_classes()

BROKERS = importlib.import_module("kafka.protocol.broker_version_data")
BROKER_API_VERSIONS = BROKERS.BROKER_API_VERSIONS
"""The ApiVersions response of each Kafka version, according to kafka-python."""
