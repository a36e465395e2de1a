"""HandlerNode: what the handlers of every family use of the node that serves the request.

Each family extends it by the components it uses; Node has them all, and no handler knows Node.
"""

from __future__ import annotations

from typing import Protocol

from kafkalite.broker.metadata_cache import MetadataCache
from kafkalite.clock import Clock
from kafkalite.config.settings import Settings
from kafkalite.coordination.image import ClusterImage
from kafkalite.transport.reactor import Reactor


class HandlerNode(Protocol):
    """A node's metadata, settings and event loop."""

    node_id: int
    clock: Clock
    reactor: Reactor
    metadata: MetadataCache

    @property
    def image(self) -> ClusterImage:
        """The cluster image of this node."""

    @property
    def settings(self) -> Settings:
        """The effective settings of this node; replaced by a new object on change."""
