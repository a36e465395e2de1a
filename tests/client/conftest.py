"""Brokers and clusters of the client tests, and the two transports of a consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.settings import ClientSettings, producer_settings
from kafkalite.testing import Broker
from tests.client.group_consumers import SHORT_TIMES

QUICK_RETRIES = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 2, "reconnect_backoff_ms": 1}


@pytest.fixture(scope="session", params=[0, 2], ids=["one process", "workers"])
def served(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker in one process or with two workers, which keeps records of 1970."""
    with Broker(workers=request.param, config={"log.retention.ms": "-1"}) as broker:
        yield broker


@pytest.fixture(scope="session")
def group_node() -> Iterator[Broker]:
    """A broker whose groups settle quickly."""
    with Broker(workers=0, config=SHORT_TIMES) as broker:
        yield broker


@pytest.fixture(params=["auto", "off"], ids=["direct", "tcp"])
def native(request: pytest.FixtureRequest) -> str:
    """A consumer's transport: the node's own files, or TCP."""
    return str(request.param)


@pytest.fixture
def make_cluster() -> Iterator[Callable[..., Cluster]]:
    """Return a factory of clusters, which are closed after the test."""
    made: list[Cluster] = []

    def make_cluster(
        *places: str,
        settings: Callable[..., ClientSettings] = producer_settings,
        warn_unreachable: bool = False,
        **keywords: Any,
    ) -> Cluster:
        made.append(Cluster(settings(list(places), QUICK_RETRIES | keywords), warn_unreachable))
        return made[-1]

    yield make_cluster
    for cluster in made:
        cluster.close()
