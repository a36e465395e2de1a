"""Principals, operations and the Authorizer that every request path consults.

Until ACLs exist, every principal may perform every operation.  The Authorizer is consulted all the
same, so that TCP, rings, direct reads and the gateway share one check.

The numbers of operations and resource types are Kafka's ACL codes: they go over the wire as bits
of `authorized_operations`.

A TCP connection is anonymous until there is authentication.  The principal of a connection to the
local listener follows from its peer credentials.

Left out: ACLs.
"""

from __future__ import annotations

import pwd
from enum import IntEnum
from functools import lru_cache

ANONYMOUS = "User:ANONYMOUS"
"""The principal of an unauthenticated connection."""


class AclOperation(IntEnum):
    """An operation on a resource, with Kafka's ACL code."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    TWO_PHASE_COMMIT = 15


class ResourceType(IntEnum):
    """A type of resource, with Kafka's ACL code."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
)
CLUSTER_ACTION = AclOperation.CLUSTER_ACTION
DESCRIBE_CONFIGS = AclOperation.DESCRIBE_CONFIGS
ALTER_CONFIGS = AclOperation.ALTER_CONFIGS
IDEMPOTENT_WRITE = AclOperation.IDEMPOTENT_WRITE
TWO_PHASE_COMMIT = AclOperation.TWO_PHASE_COMMIT

TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.CLUSTER,
    ResourceType.TRANSACTIONAL_ID,
)

USERS_CACHED_MAX = 100
"""Size of the cache of principals: a lookup of a user may read files or query another machine."""

CLUSTER_NAME = "kafka-cluster"
"""The only name of a CLUSTER resource."""

OPERATIONS = {
    TOPIC: (READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS),
    GROUP: (READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS),
    CLUSTER: (
        CREATE,
        ALTER,
        DESCRIBE,
        CLUSTER_ACTION,
        DESCRIBE_CONFIGS,
        ALTER_CONFIGS,
        IDEMPOTENT_WRITE,
    ),
    TRANSACTIONAL_ID: (WRITE, DESCRIBE, TWO_PHASE_COMMIT),
}
"""The operations supported by each type of resource; KIP-430's bit field consists of these."""


@lru_cache(USERS_CACHED_MAX)
def principal_of(uid: int) -> str:
    """Return the principal of a process of this host, by its user id."""
    try:
        return f"User:{pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"User:uid-{uid}"


class Authorizer:
    """An authorizer that allows everything."""

    def allows(
        self, principal: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """Return whether `principal` may perform `operation` on the resource called `name`."""
        return True

    def allowed_bits(self, principal: str, resource_type: ResourceType, name: str) -> int:
        """Return the operations that `principal` may perform, as KIP-430's bit field."""
        return sum(
            1 << operation
            for operation in OPERATIONS[resource_type]
            if self.allows(principal, operation, resource_type, name)
        )
