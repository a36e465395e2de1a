"""Test runs with the compiled modules built under AddressSanitizer and UBSan.

    python tools/sanitize.py                                     twins, records and their fuzzing
    python tools/sanitize.py MODULE... -- PYTEST-ARGUMENTS...    other modules, other tests

The instrumented modules are built in build/sanitized, with copies of the package and the tests,
so the modules of `make build` are unchanged.  A read past the end of a buffer, a shift that is too
large or an overflow ends the run with its line of C.  Python's allocator is switched off, because
the sanitizer only sees memory of malloc.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRATCH = ROOT / "build" / "sanitized"
# Python's own flags make overflow wrap, and what is defined is not reported.
FLAGS = ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-wrapv", "-fsanitize=address,undefined"]
MODULES = ["message_reader", "record_batch", "record_reader", "records"]
# Their limits on memory do not hold with the sanitizer's own bookkeeping.
TESTS = ["tests/test_twins.py", "tests/records", "tests/fuzz/test_fuzz_records.py",
         "-m", "not oracle", "-k", "not bomb and not imported"]  # fmt: skip


def build(modules: Sequence[str], scratch: Path = SCRATCH, flags: Sequence[str] = FLAGS) -> None:
    """Build a copy of the package in `scratch`, with these modules instrumented."""
    from Cython.Build import cythonize
    from setuptools import setup

    sys.path.insert(0, str(ROOT))
    os.chdir(ROOT)
    from setup import DIRECTIVES, INCLUDE_PATH, extension

    # Built modules of the same names are not copied, or setuptools would not rebuild them.
    others = shutil.ignore_patterns("__pycache__", *(f"{name}.*.so" for name in modules))
    for part in ("kafkalite", "tests", "tools", "benchmarks"):
        shutil.copytree(part, scratch / part, dirs_exist_ok=True, ignore=others)
    shutil.copy("pyproject.toml", scratch)
    made = cythonize(
        [extension(name, *flags, link_flags=flags) for name in modules],
        include_path=INCLUDE_PATH,
        build_dir=str(scratch / "c"),
        compiler_directives=DIRECTIVES,
        quiet=True,
    )
    places = ["--build-lib", str(scratch), "--build-temp", str(scratch / "o")]
    setup(
        name="sanitized",
        ext_modules=made,
        packages=[],
        py_modules=[],
        script_args=["-q", "build_ext", *places],
    )


def run(tests: Sequence[str]) -> int:
    libraries = []
    for name in ("libasan.so", "libubsan.so"):
        asked = [os.environ.get("CC", "gcc"), f"-print-file-name={name}"]
        libraries.append(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)
    environment = os.environ | {
        "LD_PRELOAD": " ".join(library.strip() for library in libraries),
        # Python frees little memory at its exit, which is not a leak of the modules.
        "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=16",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(SCRATCH),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=SCRATCH, env=environment, check=False).returncode


def main(arguments: Sequence[str]) -> int:
    modules, tests = list(arguments), list(TESTS)
    if "--" in arguments:
        at = modules.index("--")
        modules, tests = modules[:at], modules[at + 1 :]
    build(modules or MODULES)
    return run(tests)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
