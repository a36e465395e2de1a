"""Brokers shared by the client tests, and the two transports of a consumer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafkalite.testing import Broker


@pytest.fixture(scope="session", params=[0, 2], ids=["one process", "workers"])
def served(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker in one process or with two workers, which keeps records of 1970."""
    with Broker(workers=request.param, config={"log.retention.ms": "-1"}) as broker:
        yield broker


@pytest.fixture(params=["auto", "off"], ids=["direct", "tcp"])
def native(request: pytest.FixtureRequest) -> str:
    """A consumer's transport: the node's own files, or TCP."""
    return str(request.param)
