"""The log cleaner service: its command line.

It has no sockets: it connects to those of the nodes.  It is started when the first topic is
compacted, and the broker does not wait for it.
"""

from __future__ import annotations

from kafkalite.config.log_cleaner import LOG_CLEANER_ENABLE
from kafkalite.config.settings import Settings
from kafkalite.process.services.service import Service, ServicePlan


def plan_cleaner(settings: Settings, insecure: bool) -> ServicePlan | None:
    """Return how to start the log cleaner, or None if it is disabled."""
    if not settings[LOG_CLEANER_ENABLE]:
        return None
    return ServicePlan(["cleaner"], list)


CLEANER = Service(
    name="log cleaner",
    key="cleaner",
    socket_keys=(),
    plan=plan_cleaner,
    status=lambda listeners: None,
    describe=lambda status: "compacts the logs",
    is_on_demand=True,
)
