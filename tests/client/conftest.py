"""Brokers that the client's tests share, and the two ways to read from them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafkalite.testing import Broker


@pytest.fixture(scope="session", params=[0, 2], ids=["one process", "workers"])
def served(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker that is one process, or has two workers, and keeps records of 1970."""
    with Broker(workers=request.param, config={"log.retention.ms": "-1"}) as broker:
        yield broker


@pytest.fixture(params=["auto", "off"], ids=["direct", "tcp"])
def native(request: pytest.FixtureRequest) -> str:
    """How a consumer reads: the node's own files, or over TCP."""
    return str(request.param)
