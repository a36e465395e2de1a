"""A node in this process with a metrics page; a broker in its own with an exporter."""

import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kafkalite import metrics
from kafkalite.broker.node_metrics import IDLE_PERIODS, PERIOD_MS, NodeMetrics
from tests.handlers.conftest import InProcess
from tests.process.conftest import start  # noqa: F401


class PageValues:
    """The content of a page: values by name and labels."""

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
    """A node, and its metrics page."""

    def __init__(self, directory):
        self.broker = InProcess(directory / "data")
        self.run_directory = directory
        self.keeper = NodeMetrics(self.broker.node, directory)

    @property
    def sample(self):
        """The page's content after some periods without requests over a socket."""
        clock = self.broker.clock
        for _ in range(IDLE_PERIODS):
            clock.advance(PERIOD_MS)
            self.broker.reactor.tick(0)
        (page,) = metrics.read_pages(self.run_directory, clock.monotonic_ms())
        return PageValues(page)


@pytest.fixture
def metered(tmp_path):
    node = Metered(tmp_path)
    yield node
    node.keeper.close()
    node.broker.close()


class ScrapedBroker:
    """A broker in a process of its own, and its exporter over HTTP."""

    def __init__(self, begin, *flags, workers=0):
        self.broker = begin("--metrics", "127.0.0.1:0", *flags, workers=workers)
        self.bootstrap = self.broker.ready["bootstrap"]
        self.where = self.broker.ready["metrics"]

    def page(self, path):
        """Return status and text of a page; status 0 without a response."""
        try:
            with urllib.request.urlopen(f"http://{self.where}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read().decode()
        except OSError:
            return 0, ""

    @property
    def samples(self):
        """Values by name and labels; empty without a response."""
        status, text = self.page("/metrics")
        if status != 200:
            return {}
        return {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def total(self, name, **labels):
        """Return the sum over all brokers of the samples with this name and these labels."""
        wanted = set(labels.items())
        return sum(
            value
            for (of, *has), value in self.samples.items()
            if of == name and {each for each in has if each[0] != "broker"} == wanted
        )


@pytest.fixture
def scraped(start):  # noqa: F811
    """A factory of brokers with an exporter."""
    return lambda *flags, **options: ScrapedBroker(start, *flags, **options)
