"""The compiled decoders under libFuzzer, AddressSanitizer and UBSan.

    python -m tests.fuzz.decoders --runs 1e8               every target, each its share of the runs
    python -m tests.fuzz.decoders records --runs 1e6 --seed 7
    python -m tests.fuzz.decoders records --input FILE     one input again

Needs clang (on Debian: clang and libclang-rt-dev; CLANG names another).  The modules are built
under build/fuzz, beside those of `make build`.  Inputs with new coverage, beyond the seeds of
targets.py, are kept in corpus/TARGET.txt, one per line in hex; test_corpus.py replays them through
the ordinary build.  A failure ends the run; its input is kept in build/fuzz/faults, and the message
says how to repeat it.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path

from tools import sanitize

CORPUS = Path(__file__).parent / "corpus"
SCRATCH = sanitize.ROOT / "build" / "fuzz"
DRIVER = SCRATCH / "driver"
SANITIZERS = "address,undefined"
# Python's own flags make overflow wrap, and what is defined is not reported.
FLAGS = ["-O2", "-g", "-fno-omit-frame-pointer", "-fno-wrapv", "-fno-sanitize-recover=all"]
CLANGS = [os.environ.get("CLANG", ""), "clang", *(f"clang-{age}" for age in range(21, 13, -1))]
INPUT_SIZE_MAX = 4096
MEMORY_MIB_MAX = 2048
SLOW_S = 10
FAULT_SHOWN = 6000


class Lacking(Exception):
    """A required program is missing; the message names it."""


def clang() -> str:
    for name in filter(None, CLANGS):
        if shutil.which(name):
            return name
    raise Lacking("Fuzzing the decoders wants clang; on Debian: apt install clang libclang-rt-dev")


def build() -> None:
    """Build the instrumented modules, and the program that runs the targets."""
    compiler = clang()
    flags = [*FLAGS, f"-fsanitize=fuzzer-no-link,{SANITIZERS}"]
    os.environ["CC"] = compiler
    modules = sorted(path.stem for path in (sanitize.ROOT / "ext").glob("*/*.pyx"))
    sanitize.build(modules, SCRATCH, flags)
    for name in modules:
        (built,) = (SCRATCH / "kafkalite" / "_ext").glob(f"{name}.*.so")
        assert b"__sanitizer_cov" in built.read_bytes(), f"{built} has no eyes; remove {SCRATCH}"
    libraries, name = sysconfig.get_config_vars("LIBDIR", "LDLIBRARY")
    source = str(Path(__file__).with_name("driver.c"))
    subprocess.run(
        [compiler, *FLAGS, f"-fsanitize=fuzzer,{SANITIZERS}", source,
         f"-I{sysconfig.get_path('include')}", f"-L{libraries}", f"-Wl,-rpath,{libraries}",
         f"-l:{name}", "-lm", "-ldl", "-rdynamic", "-o", str(DRIVER)],
        check=True,
    )  # fmt: skip


def chosen(name: str) -> Callable[[memoryview], int]:
    """Return the target of this name, for the driver."""
    import crc32c

    from tests.fuzz.targets import TARGETS
    from tests.twins import record_batch, ring

    # Plain Python's CRC takes longer than everything else, and test_twins.py has checked it.
    record_batch.crc = ring.crc = crc32c.crc32c
    return TARGETS[name].run


def driven(target: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the driver on one target; its output is on standard error."""
    environment = os.environ | {
        "KAFKALITE_FUZZ_TARGET": target,
        "KAFKALITE_FUZZ_PYTHON": sys.executable,
        # Python frees little memory at its exit, which is not a leak of the modules.  A small
        # quarantine suffices for a run, because the next runs free more.
        "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=16:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(SCRATCH),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [str(DRIVER), *arguments]
    return subprocess.run(
        command, cwd=SCRATCH, env=environment, check=False, stderr=subprocess.PIPE, text=True
    )


def laid_out(inputs: Iterable[bytes], folder: Path) -> Path:
    """Write the inputs to a folder as libFuzzer needs them, a file each."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for each in inputs:
        (folder / sha256(each).hexdigest()[:16]).write_bytes(each)
    return folder


def corpus(target: str) -> list[bytes]:
    """Return the inputs kept from earlier runs."""
    path = CORPUS / f"{target}.txt"
    return [bytes.fromhex(line) for line in path.read_text().split()] if path.exists() else []


def keep(target: str, seeds: Iterable[bytes], found: Path) -> int:
    """Keep a minimal set of inputs with coverage beyond the seeds; return their number."""
    beside = laid_out(seeds, SCRATCH / "kept" / target)
    before = set(beside.iterdir())
    driven(target, "-merge=1", str(beside), str(found))
    kept = sorted({path.read_bytes() for path in set(beside.iterdir()) - before})
    kept.sort(key=lambda each: (len(each), each))
    (CORPUS / f"{target}.txt").write_text("".join(f"{each.hex()}\n" for each in kept))
    return len(kept)


def fuzz(name: str, runs: int, seed: int) -> bool:
    """Run one target and keep new inputs; return True if there was no failure."""
    from tests.fuzz.targets import TARGETS

    seeds = list(TARGETS[name].seeds())
    found = laid_out([*seeds, *corpus(name)], SCRATCH / "found" / name)
    faults = SCRATCH / "faults" / name
    faults.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    ended = driven(
        name, f"-runs={runs}", f"-seed={seed}", f"-max_len={INPUT_SIZE_MAX}",
        f"-rss_limit_mb={MEMORY_MIB_MAX}", f"-timeout={SLOW_S}", f"-artifact_prefix={faults}/",
        "-print_final_stats=1", str(found),
    )  # fmt: skip
    seconds = time.monotonic() - begun
    done = int(last(r"stat::number_of_executed_units: (\d+)", ended.stderr))
    branches = last(r"cov: (\d+)", ended.stderr)
    print(
        f"{name:9}{done:>12,} runs in {seconds:6.0f} s, {done / seconds:7,.0f}/s, seed {seed},"
        f" {branches} branches, ",
        end="",
    )
    if ended.returncode:
        again = f"python -m tests.fuzz.decoders {name} --input FILE"
        print(f"a FAULT:\n{ended.stderr[-FAULT_SHOWN:]}\nagain: {again}", flush=True)
        return False
    print(f"{keep(name, seeds, found)} inputs kept", flush=True)
    return True


def last(pattern: str, said: str) -> str:
    """Return the last number of this kind that libFuzzer printed."""
    return (re.findall(pattern, said) or ["0"])[-1]


def main(arguments: list[str]) -> int:
    from tests.fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.decoders", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--runs", type=float, default=1e6, help="of all targets together")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 1 << 31))
    parser.add_argument("--input", help="a file with one input, to be run once")
    words = parser.parse_args(arguments)
    try:
        build()
    except Lacking as lacking:
        print(lacking, file=sys.stderr)
        return 1
    names = words.targets or list(TARGETS)
    if words.input:
        ended = driven(names[0], str(Path(words.input).resolve()))
        print(ended.stderr)
        return ended.returncode
    shares = sum(TARGETS[name].share for name in names)
    faults = 0
    for name in names:
        faults += not fuzz(name, int(words.runs * TARGETS[name].share / shares), words.seed)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
