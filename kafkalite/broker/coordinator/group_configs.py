"""GroupConfigs: the configuration in force of each group, kept until it changes."""

from __future__ import annotations

import logging
from typing import NamedTuple

from kafkalite.broker.metadata_cache import MetadataCache
from kafkalite.config.group_bounds import CONSUMER_BOUNDED_KEYS, SHARE_BOUNDED_KEYS, clamped
from kafkalite.config.resources import Resource
from kafkalite.config.settings import Settings
from kafkalite.coordination.features import has_dead_letters
from kafkalite.coordination.groups.group_settings import ConsumerGroupSettings, settings_in_force
from kafkalite.coordination.share.share_settings import ShareGroupSettings, share_settings

LOGGED_LENGTH_MAX = 100

log = logging.getLogger("kafkalite.broker")


class KnownConfig(NamedTuple):
    """The values set on a group, and the configuration in force because of them."""

    texts: tuple[tuple[str, str], ...]
    consumer: ConsumerGroupSettings
    share: ShareGroupSettings


class GroupConfigs:
    """The configurations of the groups of one node; only groups with values of their own are kept.

    Their number is bounded like that of resources with configs.
    """

    def __init__(self, settings: Settings, metadata: MetadataCache) -> None:
        self._metadata = metadata
        self.reconfigure(settings)

    def reconfigure(self, settings: Settings) -> None:
        """Apply new settings of the broker, or levels of features."""
        self._settings = settings
        self._default = self._in_force((), settings)
        self._known: dict[str, KnownConfig] = {}

    def of(self, group_id: str) -> ConsumerGroupSettings:
        """Return the configuration of a consumer group, which need not exist."""
        return self._config_of(group_id).consumer

    def of_share_group(self, group_id: str) -> ShareGroupSettings:
        """Return the configuration of a share group, which need not exist."""
        return self._config_of(group_id).share

    def _config_of(self, group_id: str) -> KnownConfig:
        texts = self._metadata.image.configs.get((Resource.GROUP, group_id))
        if not texts:
            self._known.pop(group_id, None)
            return self._default
        known = self._known.get(group_id)
        current = tuple(texts.items())
        if known is None or known.texts != current:
            settings = self._settings.for_group(texts)
            known = self._known[group_id] = self._in_force(current, settings)
            _warn_of_clamped(group_id, settings)
        return known

    def _in_force(self, texts: tuple[tuple[str, str], ...], settings: Settings) -> KnownConfig:
        has_letters = has_dead_letters(self._metadata.image)
        share = share_settings(settings, has_dead_letters=has_letters)
        return KnownConfig(texts, settings_in_force(settings), share)


def _warn_of_clamped(group_id: str, settings: Settings) -> None:
    for bounded in (*CONSUMER_BOUNDED_KEYS, *SHARE_BOUNDED_KEYS):
        value = clamped(settings, bounded)
        if settings[bounded.key] != value:
            log.warning(
                "Group config is outside of the broker's bounds and is clamped. group=%r key=%s"
                " configured=%d in_force=%d",
                group_id[:LOGGED_LENGTH_MAX], bounded.key.name, settings[bounded.key], value,
            )  # fmt: skip
