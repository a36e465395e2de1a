"""kafkalite top: what a sample leaves out if nodes do not respond."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

from confluent_kafka import KafkaError

from kafkalite.cli.top_sampling import REQUEST_TIMEOUT_S, ClusterSampler


def test_node_that_does_not_list_its_groups_is_named():
    errors = [KafkaError(KafkaError._TIMED_OUT, "ListGroups timed out")]

    class LateFuture(Future):
        def result(self, timeout=None):
            assert timeout > REQUEST_TIMEOUT_S, "it completes at the timeout of the request"
            return SimpleNamespace(valid=[], errors=errors)

    sampler = ClusterSampler.__new__(ClusterSampler)
    sampler.pattern = ""
    sampler.admin = SimpleNamespace(list_consumer_groups=lambda **_: LateFuture())
    sampler.newer = SimpleNamespace(listed=dict)
    left_out = []
    assert sampler._groups(left_out) == {}
    assert left_out == ["groups of some nodes: ListGroups timed out"]
