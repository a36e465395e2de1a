"""`import kafkalite`: its cost and its exports, each tested in an interpreter of its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import kafkalite

ROOT = Path(__file__).resolve().parents[1]


def run(code, **options):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, **options
    )


def test_import_loads_neither_broker_nor_client():
    ended = run(
        "import sys, kafkalite; print(*[m for m in sys.modules if m.startswith('kafkalite.')])"
    )
    assert (ended.returncode, ended.stdout.strip()) == (0, "")


def test_exported_names_exist():
    for name in kafkalite.__all__:
        assert getattr(kafkalite, name) is not None
        assert name in dir(kafkalite)


def test_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match="Nothing"):
        kafkalite.Nothing  # noqa: B018


@pytest.mark.parametrize(
    "statement", ["from kafkalite._ext import nothing", "import kafkalite._ext.nothing"]
)
def test_missing_compiled_module_names_the_build_command(statement):
    ended = run(statement)
    assert ended.returncode == 1
    assert "kafkalite._ext.nothing is not built" in ended.stderr
    assert "make build" in ended.stderr


def test_distribution_contains_both_packages():
    code = """
import setuptools, setuptools.config.pyprojecttoml as pyproject
there = setuptools.Distribution({"script_name": "setup.py"})
pyproject.apply_configuration(there, "pyproject.toml")
building = there.get_command_obj("build_py")
building.ensure_finalized()
print(*building.get_source_files())
"""
    ended = run(code, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    taken = {name for name in ended.stdout.split() if name.endswith(".py")}
    packages = (ROOT / "kafkalite", ROOT / "spark" / "pyspark_kafkalite")
    whole = {path for package in packages for path in package.rglob("*.py")}
    assert taken == {str(path.relative_to(ROOT)) for path in whole}


def test_version_is_defined_once():
    written = f'"{kafkalite.__version__}"'
    files = [*ROOT.glob("*.toml"), *ROOT.glob("*.py")]
    for package in (ROOT / "kafkalite", ROOT / "spark" / "pyspark_kafkalite"):
        files += package.rglob("*.py")
    assert [str(file.relative_to(ROOT)) for file in files if written in file.read_text()] == [
        "kafkalite/version.py"
    ]


def test_public_compiled_docstrings_do_not_repeat_the_signature():
    compiled = {
        base
        for name in kafkalite.__all__
        for base in getattr(getattr(kafkalite, name), "__mro__", ())
        if base.__module__.startswith("kafkalite._ext.")
    }
    assert {each.__name__ for each in compiled} >= {"Gatherer", "Message"}
    documented = {each.__name__: each.__doc__ for each in compiled} | {
        f"{each.__name__}.{name}": member.__doc__
        for each in compiled
        for name, member in vars(each).items()
        if not name.startswith("_")
    }
    # Cython's default format puts the signature, in C, before the first sentence.
    signed = re.compile(r"[\w.]+\(")
    assert [name for name, text in documented.items() if signed.match(text or "")] == []
