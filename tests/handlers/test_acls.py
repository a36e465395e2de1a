"""ACL APIs without an authorizer."""

from __future__ import annotations

import pytest

from kafkalite import errors
from kafkalite.protocol.schemas.security import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS

WHAT = {"resource_type": 2, "operation": 3, "permission_type": 3}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acl_requests_return_security_disabled(broker, version):
    asked = {
        "resource_type_filter": 2, "resource_name_filter": None, "principal_filter": None,
        "host_filter": None, "operation": 1, "permission_type": 1,
    }  # fmt: skip
    made = {**WHAT, "resource_name": "a", "principal": "User:x", "host": "*"}
    described = broker.request(DESCRIBE_ACLS, version, **asked)
    (created,) = broker.request(CREATE_ACLS, version, creations=[made]).results
    (deleted,) = broker.request(DELETE_ACLS, version, filters=[asked]).filter_results
    for answer in (described, created, deleted):
        assert answer.error_code == errors.SecurityDisabled.code
    # Kafka's wording, by which programs recognize that there is no authorizer.
    assert described.error_message == "No Authorizer is configured on the broker"
    for answer in (created, deleted):
        assert answer.error_message == "No Authorizer is configured."
