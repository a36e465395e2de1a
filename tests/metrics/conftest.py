"""A node in this process that keeps a page."""

import pytest

from kafkalite import metrics
from kafkalite.broker.node_metrics import IDLE_PERIODS, PERIOD_MS, NodeMetrics
from tests.handlers.conftest import InProcess


class Told:
    """What a page said: values by name and labels."""

    def __init__(self, page):
        self.page = page
        self.values = {
            (family.name, *sorted(labels.items())): value
            for family in page.families
            for labels, value in family.samples
        }

    def __call__(self, name, **labels):
        return self.values.get((name, *sorted(labels.items())))


class Metered:
    """A node, and its page."""

    def __init__(self, directory):
        self.broker = InProcess(directory / "data")
        self.run_directory = directory
        self.keeper = NodeMetrics(self.broker.node, directory)

    @property
    def told(self):
        """What the page says a while later; no frame comes over a socket, so it is an idle one."""
        clock = self.broker.clock
        for _ in range(IDLE_PERIODS):
            clock.advance(PERIOD_MS)
            self.broker.reactor.tick(0)
        (page,) = metrics.read_pages(self.run_directory, clock.monotonic_ms())
        return Told(page)


@pytest.fixture
def metered(tmp_path):
    node = Metered(tmp_path)
    yield node
    node.keeper.close()
    node.broker.close()
