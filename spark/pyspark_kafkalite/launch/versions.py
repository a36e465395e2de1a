"""Required versions of other packages, and the installed ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from kafkalite.errors import Refusal

HOW = "pip install 'kafkalite[spark]'"


class Need(NamedTuple):
    """A package that Spark or the connector imports."""

    package: str
    least: str
    purpose: str
    """Features that need it, and fail without it."""
    always: bool
    """True if nothing works without it."""
    below: str = ""
    """First version that is not supported, if there is one."""

    @property
    def requirement(self) -> str:
        """The package and its versions, as pip takes them."""
        limit = f",<{self.below}" if self.below else ""
        return f"{self.package}>={self.least}{limit}"


NEEDS = (
    Need("pyspark", "4.2", "Spark itself; 4.2 is the first whose sources bound a trigger", True),
    Need("pyarrow", "18", "rows between Spark and Python, as columns", True),
    Need("pandas", "2.2", "functions on pandas, toPandas", False, below="3"),
    Need("numpy", "1.26", "pandas and pyarrow", False),
    Need("protobuf", "6.33.5", "transformWithState, whose workers otherwise crash", False),
    Need("fastavro", "1.9", "values in Avro", False),
)
"""In the order they are reported.  The minimum versions are pyspark's own, and ours in
pyproject.toml.
"""


class Package(NamedTuple):
    """A required package and its installed version."""

    need: Need
    installed: str | None

    @property
    def fits(self) -> bool:
        """True if it is installed and new enough."""
        return self.installed is not None and numbers(self.installed) >= numbers(self.need.least)

    @property
    def complaint(self) -> str:
        """The problem with it and the correction; empty if there is none."""
        package, least, purpose = self.need.package, self.need.least, self.need.purpose
        if self.fits:
            return ""
        if self.installed is None:
            return f"{package} is not installed, for {purpose}: {HOW}"
        return (
            f"{package} {self.installed} is installed and {least} or newer is needed, for"
            f" {purpose}: pip install '{self.need.requirement}'"
        )


def packages() -> Iterator[Package]:
    """Yield each required package with its installed version."""
    for need in NEEDS:
        try:
            yield Package(need, version(need.package))
        except PackageNotFoundError:
            yield Package(need, None)


def check() -> None:
    """Raise Refusal if a package is missing without which nothing works."""
    for package in packages():
        if package.need.always and not package.fits:
            raise Refusal(package.complaint)


def numbers(text: str) -> tuple[int, ...]:
    """Return a version's leading numbers: 4.2.0.dev1 is (4, 2, 0)."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()
