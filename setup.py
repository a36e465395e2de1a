"""Builds every ext/<name>.pyx as kafkalite._ext.<name>; all else stands in pyproject.toml.

The code is compiled for the baseline of its processor family: what a machine can do beyond it is
found out at run time.  `assert` stays: misuse ends the process rather than the data.
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.sdist import sdist

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "embedsignature": True,
}
CORES = os.cpu_count() or 1


def extensions() -> list[Extension]:
    """One extension a .pyx; Cython finds which .pxd and header each depends on."""
    return [
        Extension(
            f"kafkalite._ext.{source.stem}",
            [str(source)],
            include_dirs=["ext"],
            extra_compile_args=["-O3", "-Wall", "-Wno-unused-function"],
        )
        for source in sorted(Path("ext").glob("*.pyx"))
    ]


class SourceDistribution(sdist):  # type: ignore[misc]
    """Carries ext/ as it is written, and nothing that was generated from it."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        written = [str(path) for path in Path("ext").iterdir() if path.suffix != ".c"]
        others = [name for name in files if not name.startswith(("build/", "ext/", "tests/"))]
        super().make_release_tree(base_dir, sorted(others + written))


if __name__ == "__main__":
    setup(
        ext_modules=cythonize(
            extensions(),
            include_path=["ext"],
            build_dir="build/cython",
            compiler_directives=DIRECTIVES,
            nthreads=CORES,
        ),
        cmdclass={"sdist": SourceDistribution},
        options={"build_ext": {"parallel": CORES}},
    )
