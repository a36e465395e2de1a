"""Which versions of other packages are needed, and which are there."""

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
    """What it is for, and so what fails without it."""
    always: bool
    """Whether nothing goes without it."""
    below: str = ""
    """First version that is not supported, if there is one."""

    @property
    def requirement(self) -> str:
        """Return the package and its versions, as pip takes them."""
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
"""In the order they are told.  The least versions are pyspark's own, and ours in pyproject.toml."""


class Package(NamedTuple):
    """A package that is needed, as it was found."""

    need: Need
    installed: str | None

    @property
    def fits(self) -> bool:
        """Whether it is there and new enough."""
        return self.installed is not None and numbers(self.installed) >= numbers(self.need.least)

    @property
    def complaint(self) -> str:
        """What is wrong with it, in a sentence that says what to do; empty when nothing is."""
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
    """Each package that is needed, as it is installed here."""
    for need in NEEDS:
        try:
            yield Package(need, version(need.package))
        except PackageNotFoundError:
            yield Package(need, None)


def check() -> None:
    """Raise Refusal, in one sentence, when something is missing that nothing goes without."""
    for package in packages():
        if package.need.always and not package.fits:
            raise Refusal(package.complaint)


def numbers(text: str) -> tuple[int, ...]:
    """A version's numbers up to the first word: 4.2.0.dev1 is (4, 2, 0)."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()
