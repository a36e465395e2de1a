"""Directories of a test's Spark session."""

from __future__ import annotations

from pathlib import Path


def settings_in(directory: Path, sockets: str = "/tmp") -> dict[str, str | Path]:
    """Return the settings of a small session whose files are all in this directory, so that a
    killed one leaves none behind; its sockets are in another, whose path is short."""
    directory.mkdir(parents=True, exist_ok=True)
    places = {"derby.system.home": directory / "derby", "java.io.tmpdir": directory}
    java = [f"-D{key}={place}" for key, place in places.items()]
    java.append("-XX:TieredStopAtLevel=1")  # a test ends before better code would pay off
    return {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.local.dir": directory / "blocks",
        "spark.sql.warehouse.dir": directory / "warehouse",
        "spark.driver.extraJavaOptions": " ".join(java),
        "spark.python.unix.domain.socket.dir": sockets,
    }
