"""NodeRacks: the rack of each node in the metadata, as `broker.rack` says for it.

    broker.rack of a broker, or of all, changes ─▶ racks of the nodes ─▶ metadata log
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from kafkalite.broker.node_settings import effective_settings
from kafkalite.config.broker import BROKER_RACK
from kafkalite.config.resources import Resource
from kafkalite.protocol.schemas.internal import CONFIG, TypedRecord

if TYPE_CHECKING:
    from kafkalite.broker.controller.local_controller import LocalController
    from kafkalite.config.settings import Settings
    from kafkalite.coordination.image import ClusterImage
    from kafkalite.errors import KafkaError

log = logging.getLogger("kafkalite.broker")


def racks_of(
    static: Settings, image: ClusterImage, node_ids: Iterable[int]
) -> Mapping[int, str | None]:
    """Return the racks that the settings give these nodes; an empty value is none."""
    return {n: effective_settings(static, image, n)[BROKER_RACK] or None for n in node_ids}


class NodeRacks:
    """Writes the racks of the nodes to the metadata log when `broker.rack` has changed."""

    def __init__(
        self,
        controller: LocalController,
        static: Settings,
        call_later: Callable[[int, Callable[[], object]], object],
    ) -> None:
        """`static` are the settings of the file and of the flags."""
        self._controller = controller
        self._static = static
        self._call_later = call_later
        controller.on_change(self._changed)

    def _changed(self, records: Sequence[TypedRecord], _: int) -> None:
        if any(
            record.kind is CONFIG and record.fields["resource_type"] == Resource.BROKER
            for record in records
        ):
            self._call_later(0, self._update)

    def _update(self) -> None:
        self._controller.decide(
            lambda machine: machine.set_racks(
                racks_of(self._static, machine.image, machine.image.nodes)
            )
        ).then(self._decided)

    def _decided(self, _: object, error: KafkaError | None) -> None:
        if error is not None:
            log.error("Racks of nodes were not changed. error=%r", str(error))
