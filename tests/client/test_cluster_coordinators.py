"""Coordinators that a Cluster looks up, of scripted brokers."""

from __future__ import annotations

import pytest

from kafkalite.errors import GroupAuthorizationFailed
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.groups import FIND_COORDINATOR
from tests.client.scripted_broker import ScriptedBroker, metadata

TIMEOUT_S = 30


def coordinators(port, code=0, message=None):
    def respond(request):
        told = {"node_id": 3, "host": "127.0.0.1", "port": port(), "error_code": code}
        if request.version >= 4:
            (key,) = request.body.coordinator_keys
            return {"coordinators": [{"key": key, "error_message": message, **told}]}
        return {"error_message": message, **told}

    return respond


@pytest.mark.parametrize("newest", [2, 6])
def test_coordinator_is_cached_until_forgotten(make_cluster, newest):
    with ScriptedBroker(
        {
            METADATA: lambda request: metadata({0: there.port}),
            FIND_COORDINATOR: coordinators(lambda: there.port),
        },
        {FIND_COORDINATOR: (0, newest)},
    ) as there:
        cluster = make_cluster(there.address)
        assert cluster.coordinator("readers") == 3
        assert cluster.coordinator("readers") == 3
        assert cluster.node(3).port == there.port
        assert there.count(FIND_COORDINATOR) == 1
        cluster.drop_coordinator("readers")
        assert cluster.coordinator("readers") == 3
        assert there.count(FIND_COORDINATOR) == 2


def test_denied_group_raises_group_authorization_failed(make_cluster):
    with ScriptedBroker(
        {
            METADATA: lambda request: metadata({0: there.port}),
            FIND_COORDINATOR: coordinators(lambda: 1, GroupAuthorizationFailed.code, "not yours"),
        }
    ) as there:
        with pytest.raises(GroupAuthorizationFailed, match="group 'readers': not yours"):
            make_cluster(there.address).coordinator("readers", TIMEOUT_S)
        assert there.count(FIND_COORDINATOR) == 1
