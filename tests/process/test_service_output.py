"""ServiceOutput: the lines that a service writes, as the broker's process reads them."""

import os

import pytest

from kafkalite.clock import SystemClock
from kafkalite.process.services.service_output import LINE_MAX, ServiceOutput
from kafkalite.transport.reactor import Reactor


@pytest.fixture
def output():
    """An output whose `reports` gets an item for each report that the service is ready."""
    reactor = Reactor(SystemClock())
    reports = []
    output = ServiceOutput(reactor, "gateway", lambda: reports.append(1))
    output.reports = reports
    yield output
    reactor.close()


def test_output_reports_ready_once_the_line_is_complete(output):
    os.write(output.written, b"rea")
    output.reactor.tick(0)
    assert output.reports == []
    os.write(output.written, b"dy\n")
    output.reactor.tick(0)
    assert output.reports == [1] and output.last_line == ""
    output.close_written()
    output.close()


def test_output_keeps_the_last_line_of_a_service_that_ended(output, caplog):
    caplog.set_level("WARNING", logger="kafkalite.process")
    os.write(output.written, b"a warning\nkafkalite: the key is missing\n\n")
    output.close_written()
    output.close()
    assert output.last_line == "the key is missing"
    assert [record.getMessage() for record in caplog.records] == [
        "gateway: a warning", "gateway: kafkalite: the key is missing",
    ]  # fmt: skip


def test_output_bounds_a_line_without_an_end(output):
    for _ in range(3):
        os.write(output.written, b"x" * 10_000)
        output.reactor.tick(0)
    output.close_written()
    output.reactor.tick(0)  # end of file is read before the process is known to have ended
    output.close()
    assert output.last_line == "x" * LINE_MAX
