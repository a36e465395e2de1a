"""Features of a cluster: every node must support a level, and all nodes tell the same."""

from __future__ import annotations

from kafkalite import errors
from kafkalite.broker.controller import remote_controller
from kafkalite.protocol.schemas.cluster import API_VERSIONS, UPDATE_FEATURES

NAME = "transaction.version"
SOFTWARE = {"client_software_name": "a-test", "client_software_version": "1"}


def told(cluster, node_id):
    """Return (finalized level, epoch) as a node tells it."""
    answer = cluster.request(node_id, API_VERSIONS, 4, **SOFTWARE)
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    return levels.get(NAME), answer.finalized_features_epoch


def update(cluster, at, level, upgrade_type):
    entry = {"feature": NAME, "max_version_level": level, "upgrade_type": upgrade_type}
    return cluster.request(at, UPDATE_FEATURES, 2, feature_updates=[entry]).error_code


def test_feature_is_finalized_once_all_workers_support_it(begun, monkeypatch):
    monkeypatch.setattr(remote_controller, "SUPPORTED_LEVELS", {})  # as older code
    cluster = begun(2)
    assert told(cluster, 0)[0] is None
    assert update(cluster, 1, 2, 1) == errors.InvalidUpdateVersion.code
    monkeypatch.undo()
    cluster.kill(1)
    cluster.settle()
    assert told(cluster, 0)[0] is None
    cluster.kill(2)
    cluster.settle()
    assert [told(cluster, node_id)[0] for node_id in range(3)] == [2, 2, 2]


def test_update_at_any_node_is_returned_by_all(begun):
    cluster = begun(2)
    cluster.until(lambda: told(cluster, 2)[0] == 2)
    for at, level, upgrade_type in ((1, 1, 2), (0, 2, 1), (2, 0, 2)):
        assert update(cluster, at, level, upgrade_type) == 0
        answers = {told(cluster, node_id) for node_id in range(3)}
        assert [each[0] for each in answers] == [level or None]
