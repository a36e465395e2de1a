"""The Spark session and the broker shared by the connector's tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from kafkalite.testing import Broker
from tests.spark.settling import settings_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that need Spark first and into one group.

    xdist gives the first tests of a run to one process in its first portion: so one process starts
    Spark, at once, and the distribution of the other tests does not change.
    """
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark_session)
        if item.get_closest_marker("spark_session"):
            item.add_marker(pytest.mark.xdist_group("spark"))
    items.sort(key=lambda item: item.get_closest_marker("spark_session") is None)


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A broker that creates topics at the first write, and keeps records of 1970."""
    with Broker(config={"log.retention.ms": "-1"}) as broker:
        yield broker


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session, on two cores of this machine; its files are in a temporary directory."""
    pytest.importorskip("pyspark", reason="pyspark is not installed: pip install '.[spark]'")
    from pyspark_kafkalite.launch.java import NoJava
    from pyspark_kafkalite.launch.session import session

    directory = tmp_path_factory.mktemp("spark")
    settings = settings_in(directory) | {
        "spark.sql.streaming.checkpointLocation": directory / "checkpoints",
    }
    with mock.patch.dict(os.environ):  # Spark keeps the environment it was started with
        # Spark's workers find the tests' own functions and classes by name.
        paths = [str(ROOT / "spark"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        try:
            started = session("tests", "local[2]", **settings)
        except NoJava as refusal:
            pytest.skip(str(refusal))
    try:
        yield started
    finally:
        started.stop()
