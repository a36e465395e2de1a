"""The Grafana dashboard uses only metrics and labels that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kafkalite.broker.node_metrics import NodeMetrics
from kafkalite.metrics import HISTOGRAM
from tests.metrics.test_exporter import consumed, produced
from tests.process.waiting import until

DASHBOARD = Path(__file__).parents[2] / "tools" / "grafana" / "kafkalite.json"
METRIC = re.compile(r"\b(?:kafka|kafkalite|process)_[a-z0-9_]+\b")
LABELS = re.compile(r"([a-zA-Z_]+)\s*(?:=~|!=|!~|=)")
BY = re.compile(r"by \(([^)]*)\)")


def expressions():
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield pytest.param(target["expr"], target["legendFormat"], id=panel["title"])


def test_dashboard_has_unique_panels_and_variables():
    dashboard = json.loads(DASHBOARD.read_text())
    assert dashboard["uid"] == "kafkalite"
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids)) > 20
    assert {variable["name"] for variable in dashboard["templating"]["list"]} == {
        "datasource", "topic",
    }  # fmt: skip


@pytest.fixture(scope="module")
def known_labels(tmp_path_factory):
    """The labels of every sample's name, of a broker with a load that covers all metrics."""
    from tests.metrics.conftest import ScrapedBroker
    from tests.process.conftest import Started

    directory = tmp_path_factory.mktemp("dashboard")
    scraped = ScrapedBroker(
        lambda *flags, workers: Started(directory, flags, workers=workers), "-o",
        "durability=fsync",
    )  # fmt: skip
    try:
        produced(scraped, "flights", 10)
        refused = Producer({"bootstrap.servers": scraped.bootstrap, "message.timeout.ms": 500})
        refused.produce("flights", b"v", partition=0, timestamp=1 << 50)
        refused.flush(10)
        consumer = consumed(scraped, "flights", 10, "readers")
        needed = ("kafka_consumergroup_lag", "kafka_network_requestmetrics_errors_total")
        until(lambda: all(name in {key[0] for key in scraped.samples} for name in needed))
        labels = {}
        for name, *has in scraped.samples:
            labels.setdefault(name, set()).update(label for label, _ in has)
        consumer.close()
        yield labels
    finally:
        scraped.broker.process.kill()
        scraped.broker.process.communicate()


@pytest.mark.parametrize(("expression", "legend"), list(expressions()))
def test_each_expression_uses_existing_metrics_and_labels(known_labels, expression, legend):
    names = METRIC.findall(expression)
    assert names, expression
    for name in names:
        assert name in known_labels, f"no page has {name}"
        used = {label for words in re.findall(r"\{([^}]*)\}", expression)
                 for label in LABELS.findall(words)}  # fmt: skip
        by = {word.strip() for words in BY.findall(expression) for word in words.split(",")}
        shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
        assert used | by | shown <= known_labels[name], expression


def test_each_metric_family_has_a_sentence_and_a_conventional_name(metered):
    metered.broker.create("a")
    for family in NodeMetrics.families(metered.keeper):
        assert family.sentence.endswith(".")
        assert family.name.endswith("_total") == (family.kind == "counter")
        assert family.kind == HISTOGRAM or not family.name.endswith("ms")
