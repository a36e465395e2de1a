"""The scenes: SCENES maps a scene's name to its function.

@scene(PRODUCE)                  one scene for every version Kafka accepts
@scene(PRODUCE, versions=[3])    only for these
@scene()                         one scene, which chooses the versions itself
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kafkalite.protocol.schema import Api
from tests.oracle.conversation import Conversation

SCENES: dict[str, Callable[[Conversation], None]] = {}


def scene(
    api: Api | None = None, *, versions: Sequence[int] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def enter(play: Callable[..., None]) -> Callable[..., None]:
        family = play.__module__.rpartition(".")[2]
        name = f"{family}.{play.__name__}"
        if api is None:
            SCENES[name] = play
            return play
        low, high = api.versions
        for version in versions if versions is not None else range(low, high + 1):
            SCENES[f"{name}[{version}]"] = lambda talk, version=version: play(talk, version)
        return play

    return enter


def load() -> dict[str, Callable[[Conversation], None]]:
    """Return all scenes by name."""
    from tests.oracle.scenes import (  # noqa: F401  (they enter themselves)
        administration,
        cluster,
        committed,
        configs,
        consumer_groups,
        coordinator,
        dead_letters,
        fetch,
        groups,
        membership,
        offsets,
        produce,
        share_groups,
        share_records,
        telemetry,
        topics,
        transactions,
        wire,
    )

    return SCENES
