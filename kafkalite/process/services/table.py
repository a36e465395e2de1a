"""The table of services: all that can run beside the broker.

Start, restart, readiness, status and banner iterate over it.  Services start in this order and shut
down in the reverse one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kafkalite.config.settings import Settings
from kafkalite.process.services.cleaner_service import CLEANER
from kafkalite.process.services.exporter_service import EXPORTER
from kafkalite.process.services.gateway_service import GATEWAY
from kafkalite.process.services.service import Service, ServicePlan

SERVICES: tuple[Service, ...] = (EXPORTER, GATEWAY, CLEANER)

SOCKET_KEYS = tuple(key for service in SERVICES for key in service.socket_keys)


class ConfiguredService(NamedTuple):
    """A service of the table that the settings enable."""

    service: Service
    plan: ServicePlan


def configured_services(settings: Settings, insecure: bool) -> list[ConfiguredService]:
    """Return the configured services; raise Refusal if a setting is not allowed."""
    plans = ((service, service.plan(settings, insecure)) for service in SERVICES)
    return [ConfiguredService(service, plan) for service, plan in plans if plan is not None]


def describe_services(status: Mapping[str, Any]) -> dict[str, str]:
    """Return text on each service in the content of status.json, by the service's key."""
    return {
        service.key: service.describe(status[service.key])
        for service in SERVICES
        if service.key in status
    }
