"""PatternLookups: the lookups of the regular expressions of all groups of a node.

A lookup takes steps of the event loop's time, and no response waits for it: one client could begin
those of many groups.  So all lookups together take as much of a tick as one stepped request, and
each of them a step in turn.
"""

from __future__ import annotations

from kafkalite.broker.stepping import Work, in_steps
from kafkalite.transport.reactor import Reactor


class PatternLookups:
    """See the module."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._lookups: dict[str, Work[None]] = {}
        self._is_running = False

    def __len__(self) -> int:
        return len(self._lookups)

    def add(self, group_id: str, lookup: Work[None]) -> None:
        """Begin a lookup for a group, unless one is in progress."""
        self._lookups.setdefault(group_id, lookup)
        if not self._is_running:
            self._is_running = True
            in_steps(self._reactor, self._run())

    def _run(self) -> Work[None]:
        try:
            while self._lookups:
                group_id = next(iter(self._lookups))
                lookup = self._lookups.pop(group_id)
                for _ in lookup:
                    self._lookups[group_id] = lookup  # the last one now
                    break
                yield
        finally:
            self._is_running = False
