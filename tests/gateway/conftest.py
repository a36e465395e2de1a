"""Gateways in this process, and their ZeroMQ peers."""

import pytest

from tests.gateway.serving import GatewayThread, Peers


@pytest.fixture
def peers():
    made = Peers()
    yield made
    made.close()


@pytest.fixture
def start_gateway():
    """A factory of gateways; each ends with the test."""
    made = []

    def make(*args, **keys):
        made.append(GatewayThread(*args, **keys))
        return made[-1]

    yield make
    for each in made:
        each.close()
