"""Requests that librdkafka cannot send, over a plaintext connection of the native client.

    wire = WireClient(cluster)
    wire.request(LIST_CONFIG_RESOURCES, {"resource_types": []}).config_resources

Each request opens and closes a connection.  TLS and SASL are not supported here, so requests that
librdkafka supports are sent by librdkafka.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from kafkalite.cli.clients import REQUEST_TIMEOUT_S, ClusterClients
from kafkalite.client.net.connection import BrokerConnection
from kafkalite.client.net.deadline import Deadline
from kafkalite.client.net.settings import ClientSettings, parse_settings
from kafkalite.client.net.topology import Address
from kafkalite.config.client import CLIENT
from kafkalite.errors import KafkaError, NetworkException, Refusal, UnsupportedVersion
from kafkalite.protocol.schema import Api, Fields


class UnsupportedRequest(Refusal):
    """The broker supports no version of a request."""


class WireClient:
    """Sends single requests to a cluster's brokers."""

    def __init__(self, cluster: ClusterClients, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self.cluster = cluster
        self.timeout_s = timeout_s

    def request(self, api: Api, request: Mapping[str, Any], at: Address | None = None) -> Fields:
        """Send a request in the newest version that both sides support, and return the response.

        `at` is the broker's address; None: the first broker that accepts a connection.  Error codes
        in the response are not checked.
        """
        security = self.cluster.properties.get("security.protocol", "plaintext")
        if security.lower() != "plaintext":
            raise Refusal(
                f"{api.name} requests require security.protocol=plaintext, not {security}: use a"
                " plaintext listener"
            )
        deadline = Deadline(self.timeout_s)
        try:
            settings = ClientSettings(CLIENT, parse_settings(CLIENT, self.cluster.bootstrap, {}))
            addresses = [at] if at else settings.addresses
            with contextlib.closing(open_connection(addresses, settings, deadline)) as connection:
                return connection.request(api, dict(request), deadline.left_s)
        except UnsupportedVersion as error:
            raise UnsupportedRequest(
                f"the broker at {self.cluster.bootstrap} does not support this request: {error}"
            ) from None
        except KafkaError as error:
            raise Refusal(str(error).rstrip(".")) from None


def open_connection(
    addresses: list[Address], settings: ClientSettings, deadline: Deadline
) -> BrokerConnection:
    """Return a connection to the first address that accepts one."""
    for number, address in enumerate(addresses, start=1):
        connection = BrokerConnection(address, settings)
        try:
            connection.open(deadline.left_s)
            return connection
        except NetworkException:
            if number == len(addresses):
                raise
    raise AssertionError("the list of addresses is empty")
