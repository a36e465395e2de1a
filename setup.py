"""Builds every ext/<layer>/<name>.pyx as kafkalite._ext.<name>; see pyproject.toml for the rest.

The code is compiled for the baseline of its processor family: what a machine can do beyond it is
found out at run time.  `assert` stays: misuse ends the process rather than the data.
"""

import os
from collections.abc import Sequence
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
FLAGS = ("-O3", "-Wall", "-Wno-unused-function")
WRITTEN = {".pyx", ".pxd", ".pxi", ".h", ".md"}
CORES = os.cpu_count() or 1


SOURCES = {source.stem: source for source in sorted(Path("ext").glob("*/*.pyx"))}
"""The source file of each compiled module."""
INCLUDE_PATH = sorted(map(str, Path("ext").glob("*/")))
"""Directories of .pxd files: Cython finds them by their name alone."""


def extension(name: str, *flags: str, link_flags: Sequence[str] = ()) -> Extension:
    """Return the extension of one module; Cython finds the .pxd files and headers it depends on."""
    source = SOURCES[name]
    return Extension(
        f"kafkalite._ext.{name}",
        [str(source)],
        include_dirs=[str(source.parent), "ext/codec"],
        extra_compile_args=list(flags),
        extra_link_args=list(link_flags),
    )


class SourceDistribution(sdist):  # type: ignore[misc]
    """Source distribution: contains ext/ without generated files."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        written = [str(path) for path in Path("ext").rglob("*") if path.suffix in WRITTEN]
        others = [name for name in files if not name.startswith(("build/", "ext/", "tests/"))]
        super().make_release_tree(base_dir, sorted(others + written))


if __name__ == "__main__":
    setup(
        ext_modules=cythonize(
            [extension(name, *FLAGS) for name in SOURCES],
            include_path=INCLUDE_PATH,
            build_dir="build/cython",
            compiler_directives=DIRECTIVES,
            nthreads=CORES,
        ),
        cmdclass={"sdist": SourceDistribution},
        options={"build_ext": {"parallel": CORES}},
    )
