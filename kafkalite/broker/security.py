"""Who a caller is and what it may do: one Authorizer, asked on every road into the broker.

Until ACLs exist everybody may do everything.  The question is asked all the same, so that TCP,
rings, direct reads and the gateway will share one door.

The numbers of operations and resource types are Kafka's ACL codes: they go over the wire as bits
of `authorized_operations`.

A connection over TCP is anonymous until there are logins.  Who comes over a local socket is known
by what the kernel says of its process.

Left out: ACLs.
"""

from __future__ import annotations

import pwd
from enum import IntEnum
from functools import lru_cache

ANONYMOUS = "User:ANONYMOUS"
"""The principal of a connection that did not log in."""


class Operation(IntEnum):
    """What somebody may want to do with a resource."""

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


class ResourceType(IntEnum):
    """What an operation is done to."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
)
CLUSTER_ACTION = Operation.CLUSTER_ACTION
DESCRIBE_CONFIGS = Operation.DESCRIBE_CONFIGS
ALTER_CONFIGS = Operation.ALTER_CONFIGS
IDEMPOTENT_WRITE = Operation.IDEMPOTENT_WRITE

TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.CLUSTER,
    ResourceType.TRANSACTIONAL_ID,
)

USERS_REMEMBERED = 100
"""Looking a user up may read files, or ask another machine."""

CLUSTER_NAME = "kafka-cluster"
"""The one name a CLUSTER resource has."""

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
    TRANSACTIONAL_ID: (WRITE, DESCRIBE),
}
"""Which operations make sense on which resource (KIP-430's bit field is made of these)."""


@lru_cache(USERS_REMEMBERED)
def principal_of(uid: int) -> str:
    """Who a process of this host is, by its user's number."""
    try:
        return f"User:{pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"User:uid-{uid}"


class Authorizer:
    """Says yes to everyone."""

    def allows(
        self, principal: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        """Whether `principal` may do `operation` to the resource called `name`."""
        return True

    def allowed_bits(self, principal: str, resource_type: ResourceType, name: str) -> int:
        """All that `principal` may do to a resource, as KIP-430's bit field."""
        return sum(
            1 << operation
            for operation in OPERATIONS[resource_type]
            if self.allows(principal, operation, resource_type, name)
        )
