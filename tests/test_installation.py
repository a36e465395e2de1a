"""The wheel, installed with only its declared dependencies.

The wheel is built once, from the modules that are already compiled.  For the base and each extra an
empty environment gets the wheel, and links to those distributions of the tests' environment that
its metadata requires, directly or indirectly.  So nothing is downloaded, and no undeclared package
can be imported there.
"""

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
EXPECTED_IN = {"arrow": {"numpy", "pyarrow"}, "spark": {"pandas", "pyspark"}}

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
import kafkalite
for name in kafkalite.__all__:
    getattr(kafkalite, name)
print(*failed, sep="\\n", end="")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel of this tree; modules compiled by `make build` are not compiled again."""
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
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
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
        run([*pip, "install", "-q", "--no-index", "--no-deps", wheel])
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


def link(distribution, site):
    """Link the files of a distribution; its scripts, outside site-packages, are left out."""
    for file in distribution.files:
        if ".." not in file.parts and "__pycache__" not in file.parts:
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(file.locate())


@pytest.mark.parametrize(
    ("extra", "packages"),
    [("", ["kafkalite"]), ("arrow", ["kafkalite"]), ("spark", ["kafkalite", "pyspark_kafkalite"])],
    ids=["base", "arrow", "spark"],
)
def test_an_installation_imports_with_nothing_but_what_it_declares(installed, extra, packages):
    python, there = installed(extra)
    for other, expected in EXPECTED_IN.items():
        if other == extra:
            assert expected <= there
    assert not there & {"typing-extensions", "pytest", "hypothesis"}
    assert run([python, "-I", "-c", IMPORT_ALL, *packages]) == ""
    command = run([python.with_name("kafkalite"), "--version"])
    assert kafkalite.__version__ in command
