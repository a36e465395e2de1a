"""An authorizer that denies."""

from __future__ import annotations

import re

from kafkalite.broker.security import AclOperation, Authorizer, ResourceType


class Denying(Authorizer):
    """Denies some operations on resources whose name matches."""

    def __init__(self, *operations: AclOperation, names: str = ".*") -> None:
        self.operations = operations
        self.names = re.compile(names)

    def allows(
        self, principal: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        return not (operation in self.operations and self.names.fullmatch(name))
