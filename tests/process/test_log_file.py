"""One log file for several processes: whole lines, rotation by size, read back for the banner."""

import logging
import os

import pytest

from kafkalite.clock import ManualClock
from kafkalite.process import log_file
from kafkalite.transport.reactor import Reactor


@pytest.fixture
def log(tmp_path):
    """Yield the file, and a function that logs as a given process would."""
    path = tmp_path / "kafkalite.log"
    root = logging.getLogger("kafkalite")
    before = (root.level, root.propagate, root.handlers)

    def write(who, level, message, **rest):
        log_file.log_to(path, who)
        logging.getLogger("kafkalite.storage").log(level, message, **rest)

    yield path, write
    for handler in root.handlers:
        handler.close()
    root.level, root.propagate, root.handlers = before


def test_log_line_names_process_and_package(log):
    path, write = log
    write("node-2", logging.INFO, "hello")
    assert path.read_text().endswith(" INFO node-2 kafkalite.storage: hello\n")


def test_warnings_since_the_start_are_read_for_all_processes(log):
    path, write = log
    assert log_file.warnings_since(path, log_file.end_position(path)) == []
    write("node-0", logging.WARNING, "of the run before")
    since = log_file.end_position(path)
    write("node-0", logging.INFO, "all is well")
    write("node-1", logging.WARNING, "flights-0 is odd: WARNING")
    try:
        raise ValueError("a trace is not a line of its own")
    except ValueError:
        write("node-2", logging.ERROR, "worse", exc_info=True)
    write("launcher", logging.CRITICAL, "worst")
    assert log_file.warnings_since(path, since) == ["flights-0 is odd: WARNING", "worse", "worst"]


def test_rotated_file_is_read_from_its_beginning(log):
    path, write = log
    write("node-0", logging.WARNING, "of the run before, and long enough to be behind")
    since = log_file.end_position(path)
    log_file.rotate(path)
    write("node-0", logging.WARNING, "new")
    assert log_file.warnings_since(path, since) == ["new"]


def test_large_file_is_rotated_and_the_oldest_removed(log, monkeypatch):
    path, write = log
    monkeypatch.setattr(log_file, "SIZE_MAX", 40)
    clock = ManualClock()
    reactor = Reactor(clock)
    log_file.rotate_when_large(reactor, path)
    for number in range(6):
        write("node-0", logging.INFO, f"line {number}, and some more of it")
        clock.advance(log_file.SIZE_CHECK_MS)
        reactor.tick(0)
    reactor.close()
    kept = {file.name: file.read_text().split("line ")[1][0] for file in path.parent.iterdir()}
    assert kept == {"kafkalite.log.1": "5", "kafkalite.log.2": "4", "kafkalite.log.3": "3"}


def test_logger_writes_to_the_new_file_after_a_rotation(log):
    path, _ = log
    log_file.log_to(path, "node-1")
    logger = logging.getLogger("kafkalite.storage")
    logger.warning("before")
    log_file.rotate(path)
    logger.warning("after")
    assert "after" in path.read_text() and "before" not in path.read_text()


def test_log_that_cannot_be_written_is_ignored(log, capsys):
    path, write = log
    write("node-0", logging.WARNING, "fine")
    path.unlink()
    path.mkdir()
    log_file.log_to(path, "node-0")
    logging.getLogger("kafkalite.storage").warning("lost")
    path.rmdir()
    path.symlink_to("/dev/full")
    log_file.log_to(path, "node-0")
    logging.getLogger("kafkalite.storage").warning("lost")
    os.unlink(path)
    assert capsys.readouterr() == ("", "")
