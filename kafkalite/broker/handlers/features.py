"""Features: changes of the levels that the cluster has finalized (KIP-584).

UpdateFeatures   v0–v2    v1 names the type of upgrade, v2 has one error for all (KIP-1022)

ApiVersions lists the supported and the finalized levels.  The updates of a request are made all or
none, in every version, as in Kafka 4.
"""

from __future__ import annotations

from typing import Any, Protocol

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.controller.local_controller import LocalController
from kafkalite.broker.error_responses import error_fields
from kafkalite.broker.future import Future
from kafkalite.broker.handler_node import HandlerNode
from kafkalite.broker.security import ALTER, CLUSTER, CLUSTER_NAME
from kafkalite.broker.served_apis import Response, ServingNode, serves
from kafkalite.coordination.features import FeatureUpdate, UpgradeType
from kafkalite.errors import InvalidUpdateVersion, KafkaError
from kafkalite.protocol.schemas.cluster import UPDATE_FEATURES

REFUSED = "The update failed for all features since the following feature had an error: "
"""Kafka's words, which precede the reason."""


class FeaturesNode(HandlerNode, Protocol):
    """The components that updates of features use."""

    @property
    def local_controller(self) -> LocalController:
        """The controller on this node."""


@serves(UPDATE_FEATURES, versions="0-2", at=ServingNode.CONTROLLER)
def update_features(
    node: FeaturesNode, request: Any, client: ClientContext
) -> Response | Future[Response]:
    """Change the finalized levels; respond once every node has them."""
    client.must(ALTER, CLUSTER, CLUSTER_NAME)
    updates = {
        each.feature: FeatureUpdate(each.max_version_level, _upgrade_type(each, client.version))
        for each in request.feature_updates
    }

    def respond(_: None) -> Response:
        results = [{"feature": name, "error_code": 0, "error_message": None} for name in updates]
        return {"error_message": None, "results": results}

    def refuse(error: KafkaError) -> Response:
        if isinstance(error, InvalidUpdateVersion):
            error = InvalidUpdateVersion(REFUSED + str(error))
        return error_fields(error)

    by_node = node.local_controller.features_by_node()
    updated = node.local_controller.execute(
        lambda machine: machine.update_features(
            updates, by_node, validate_only=request.validate_only
        )
    )
    return updated.map(respond).recover(refuse)


def _upgrade_type(update: Any, version: int) -> int:
    if version >= 1:
        return int(update.upgrade_type)
    return UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE
