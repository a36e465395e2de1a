"""Architecture tests: the structure rules of the code base, each with a breach that proves it.

A rule is a function of the source tree that yields a message for each breach: its subject, a colon,
and the remedy.  tests/architecture/ holds the rules, and for each rule source trees that break it.
Known breaches are listed in tests/architecture/allowed.py; an entry without a breach is an error.
"""

import itertools
import subprocess
import sys
import textwrap

import pytest

from tests.architecture import dependencies, docstrings, files, imports, names, wording
from tests.architecture.allowed import ALLOWED
from tests.architecture.dependencies import NOT_IN_BROKER, PYPROJECT
from tools.architecture import INNER_LAYERS, LAYERS, ROOT, SourceTree, layer_of

MODULES = (imports, dependencies, files, names, wording, docstrings)
RULES = [rule for module in MODULES for rule in module.RULES]
BREACHES = [breach for module in MODULES for breach in module.BREACHES]


def subject(message):
    """Return the part of a message that an entry of ALLOWED repeats."""
    return message.partition(": ")[0]


# The source tree follows the rules.


@pytest.fixture(scope="module")
def source_tree():
    return SourceTree()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_source_tree_follows_rule(source_tree, rule):
    allowed = ALLOWED.get(rule.__name__, set())
    messages = list(rule(source_tree))
    breaches = [message for message in messages if subject(message) not in allowed]
    assert not breaches, "\n" + "\n".join(breaches)
    unused = sorted(allowed - set(map(subject, messages)))
    assert not unused, "\nremove from tests/architecture/allowed.py:\n" + "\n".join(unused)


def test_allowed_breaches_name_a_rule():
    assert ALLOWED.keys() <= {rule.__name__ for rule in RULES}


def test_broker_process_loads_no_client_library():
    code = "import sys, kafkalite.process.launcher, kafkalite.broker.node; print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    assert not set(ended.stdout.split()) & NOT_IN_BROKER.keys()


def test_native_client_loads_columns_and_asyncio_on_first_use():
    code = "import sys, kafkalite; kafkalite.Producer, kafkalite.Consumer; print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    assert not set(ended.stdout.split()) & {*NOT_IN_BROKER, "zmq"}


# Each rule can fail.


def built(tmp_path, files):
    """Return a source tree of these files: path → text."""
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return SourceTree(tmp_path)


@pytest.mark.parametrize(
    ("rule", "files", "message"), BREACHES, ids=lambda value: getattr(value, "__name__", "")
)
def test_rule_reports_its_breach(tmp_path, rule, files, message):
    breaches = list(rule(built(tmp_path, files)))
    assert breaches and message in breaches[0]
    # An import cycle is reported once for each of its imports.
    assert len(breaches) == 1 or rule is imports.modules_have_no_import_cycles


def test_each_rule_has_a_breach():
    assert {rule for rule, _, _ in BREACHES} == set(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_accepts_sound_tree(tmp_path, rule):
    sound = {
        "kafkalite/__init__.py": '"""The tree."""',
        "kafkalite/errors.py": '"""Errors."""',
        "kafkalite/_ext/__init__.py": '"""Compiled."""',
        "kafkalite/_ext/walk.pyi": "from kafkalite.errors import KafkaError",
        "kafkalite/storage/__init__.py": '"""Disk."""',
        "kafkalite/storage/log.py": '"""A log."""\nfrom . import segment',
        "kafkalite/storage/segment.py": '"""A segment."""\nfrom kafkalite._ext import walk\n'
        "if TYPE_CHECKING:\n    from kafkalite.errors import KafkaError",
        "kafkalite/broker/__init__.py": '"""A node."""\nimport kafkalite.storage.log',
        "kafkalite/process/__init__.py": '"""Processes."""\nfrom kafkalite import broker, errors',
        "kafkalite/cli/__init__.py": '"""Commands."""\nMODULES = {"start": "broker"}',
        "kafkalite/cli/broker.py": '"""Start."""\nimport asyncio, kafkalite.process',
        "spark/pyspark_kafkalite/sink.py": '"""A sink."""\nfrom kafkalite.client import producer\n'
        "class DataLoss(Exception): ...",
        "ext/log/walk.pyx": '"""Walks."""\nfrom layout cimport SIZE\n'
        "cdef int f(int a):\n    return a",
        "ext/codec/layout.pxd": "# The layout.",
        "pyproject.toml": PYPROJECT,
        "kafkalite/client/__init__.py": '"""A client."""\nMODULES = {"Producer": "producer"}',
        "kafkalite/client/producer.py": '"""A producer."""\nimport zmq\n'
        "def send():\n    import pyarrow.compute\n"
        "with suppress(ImportError):\n    import pytest\n"
        "if TYPE_CHECKING:\n    from typing_extensions import Buffer",
    }
    assert list(rule(built(tmp_path, sound))) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [("MetadataImage", []), ("database", []), ("RecordData", ["data"]), ("Helpers", ["helper"]),
     ("HTTPContext", ["context"]), ("based_on", []), ("base", ["base"]), ("bases", ["base"])],
)  # fmt: skip
def test_forbidden_words_are_whole_words(name, words):
    assert names.words_of(name) == words


def test_inner_packages_belong_to_one_layer():
    for package, layers in INNER_LAYERS.items():
        inner = list(itertools.chain(*layers))
        assert len(inner) == len(set(inner))
        assert all((ROOT / "kafkalite" / package / each).is_dir() for each in inner)


def test_package_belongs_to_one_layer():
    packages = list(itertools.chain(*LAYERS))
    assert len(packages) == len(set(packages))
    with pytest.raises(KeyError, match="add it"):
        layer_of("attic")
