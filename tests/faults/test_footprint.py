"""Self-test of the footprint: equal ones are equal, and each kind of leak is found."""

import os
import signal
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import pytest

from tests.faults.footprint import Footprint, grown, look
from tests.faults.processes import children_of, exists, parent_of
from tests.process.waiting import until

MIB = 1 << 20


def at_rest():
    return Footprint(
        descriptors=Counter({"socket": 3, "anon_inode": 6}),
        opened=Counter({"/nodes/1/t-0/00000000000000000000.log": 1}),
        processes=4,
        threads=9,
        rss=100 * MIB,
        directories=Counter({"topic-N": 6}),
        files={"N.log", "N.index", "metadata"},
    )


def test_footprint_ignores_small_allocator_growth():
    assert list(grown(at_rest(), at_rest())) == []
    after = at_rest()
    after.rss = 120 * MIB
    after.files.add("N.snapshot")
    after.opened["/nodes/1/t-0/00000000000000000000.index"] = 1
    assert list(grown(at_rest(), after)) == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"descriptors": Counter({"socket": 4, "anon_inode": 6})}, "descriptors"),
        ({"descriptors": Counter({"socket": 3, "anon_inode": 5})}, "descriptors"),
        ({"opened": Counter({"/nodes/1/t-0/00000000000000000000.log": 2})}, "open 2 times"),
        ({"opened": Counter({"/t-0/00000000000000000000.log (deleted)": 1})}, "deleted"),
        ({"threads": 10}, "threads"),
        ({"processes": 5}, "processes"),
        ({"rss": 150 * MIB}, "resident"),
        ({"directories": Counter({"topic-N": 7})}, "directories"),
        ({"files": {"N.log", "N.index", "metadata", "core"}}, "kind"),
        ({"leftovers": ["topic-1/handover"]}, "leftovers"),
    ],
)
def test_footprint_reports_each_kind_of_leftover(changes, named):
    after = at_rest()
    for name, value in changes.items():
        setattr(after, name, value)
    (complaint,) = grown(at_rest(), after)
    assert complaint.startswith("I13: ") and named in complaint


@pytest.fixture
def family(tmp_path):
    """A process with a child, and a file that the child holds open."""
    code = (
        "import os, sys, time\n"
        "if os.fork() == 0:\n"
        "    held = open(sys.argv[1], 'w')\n"
        "os.write(1, b'%d\\n' % os.getpid())\n"
        "time.sleep(60)\n"
    )
    held = tmp_path / "nodes" / "1" / "topic-0" / "00000000000000000123.log"
    held.parent.mkdir(parents=True)
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(held)], stdout=subprocess.PIPE, text=True
    )
    with parent:
        pids = {int(parent.stdout.readline()) for _ in range(2)}
        (child,) = pids - {parent.pid}
        yield parent, child, tmp_path
        for pid in (child, parent.pid):
            if exists(pid):
                os.kill(pid, signal.SIGKILL)


def test_footprint_counts_child_processes_and_groups_files(family):
    parent, child, directory = family
    (directory / "nodes" / "1" / "topic-0" / "handover").touch()
    processes = SimpleNamespace(broker=SimpleNamespace(pid=parent.pid))
    found = look(processes, [directory])
    assert found.processes == 2
    assert found.threads == 2
    assert found.rss > 2 * MIB
    assert found.opened == {str(directory / "nodes/1/topic-0/00000000000000000123.log"): 1}
    assert found.descriptors["pipe"] >= 2
    assert found.directories["topic-N"] == 1
    assert found.files == {"N.log", "handover"}
    assert found.leftovers == ["nodes/1/topic-0/handover"]


def test_footprint_finds_an_unreaped_process(family):
    parent, child, _ = family
    assert children_of(parent.pid) == [child]
    assert parent_of(child) == parent.pid
    os.kill(child, signal.SIGKILL)
    until(lambda: parent_of(child) is None)
    assert children_of(parent.pid) == [child] and exists(child), "a zombie is a leftover"
    parent.kill()
    parent.wait()
    until(lambda: not exists(child))
    assert parent_of(child) is None and children_of(parent.pid) == []
