"""The one Spark session and the broker that the connector's tests share."""

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
    """Tests that need Spark go first and together.

    The first tests of a run are xdist's first portion, which goes to one process: so one process
    starts Spark, at once, and the other tests are spread as they were.
    """
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark_session)
        if item.get_closest_marker("spark_session"):
            item.add_marker(pytest.mark.xdist_group("spark"))
    items.sort(key=lambda item: item.get_closest_marker("spark_session") is None)


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A broker whose topics are made when they are first written to, and keep records of 1970."""
    with Broker(config={"log.retention.ms": "-1"}) as broker:
        yield broker


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session, on two cores of this machine; what it writes lies under a directory of ours."""
    pytest.importorskip("pyspark", reason="pyspark is not installed: pip install '.[spark]'")
    from pyspark_kafkalite.java import NoJava
    from pyspark_kafkalite.session import session

    directory = tmp_path_factory.mktemp("spark")
    settings = settings_in(directory) | {
        "spark.sql.streaming.checkpointLocation": directory / "checkpoints",
    }
    with mock.patch.dict(os.environ):  # Spark keeps what it was started with
        # Tests' own functions and classes are found by Spark's workers under their names.
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
