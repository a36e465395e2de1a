"""kafka-features.sh: describe a cluster's features, and change their finalized levels (KIP-584).

Left out: --release-version, --metadata, version-mapping and feature-dependencies, which need the
features of Kafka's releases; TLS and SASL (cli/wire.py).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from kafkalite.cli.shell_tools.cluster import CONNECTION, brokers, errors_as_refusals
from kafkalite.cli.shell_tools.flags import Flag, ParsedFlags, ShellTool, ToolCommand, whole
from kafkalite.cli.wire import WireClient
from kafkalite.client.net.topology import Address
from kafkalite.errors import BY_CODE, Refusal, UnknownServerError
from kafkalite.protocol.schemas.cluster import API_VERSIONS, METADATA, UPDATE_FEATURES
from kafkalite.version import __version__

LEVEL_MAX = 32_767
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
"""Types of an update in UpdateFeatures."""
NONE = -1

METADATA_VERSION = "metadata.version"
METADATA_LEVEL_MIN = 7
METADATA_VERSIONS = (
    "3.3-IV3", "3.4-IV0", "3.5-IV0", "3.5-IV1", "3.5-IV2", "3.6-IV0", "3.6-IV1", "3.6-IV2",
    "3.7-IV0", "3.7-IV1", "3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0", "4.0-IV0",
    "4.0-IV1", "4.0-IV2", "4.0-IV3", "4.1-IV0", "4.1-IV1", "4.2-IV0", "4.2-IV1", "4.3-IV0",
    "4.4-IV0",
)  # fmt: skip
"""Kafka's names of the levels of metadata.version, from METADATA_LEVEL_MIN on."""

NO_RELEASES = "is not supported: name the features with --feature"


def feature_level(text: str) -> tuple[str, int]:
    """Parse FEATURE=LEVEL."""
    name, _, level = text.partition("=")
    try:
        found = name.strip(), whole(level.strip())
    except ValueError:
        raise ValueError("FEATURE=LEVEL") from None
    if not 0 <= found[1] <= LEVEL_MAX:
        raise ValueError(f"FEATURE=LEVEL, with a level from 0 to {LEVEL_MAX}")
    return found


def disabled(text: str) -> tuple[str, int]:
    """Return the level of a feature that is disabled."""
    return text, 0


LEVELS = Flag("feature", "FEATURE=LEVEL", "the new level; may be repeated", feature_level, True)
DRY_RUN = Flag("dry-run", help="check the change without making it")
UNSAFE = Flag("unsafe", help="also if metadata may be lost")
RELEASE = (
    Flag("release-version", "RELEASE", refused=NO_RELEASES),
    Flag("metadata", "RELEASE", refused=NO_RELEASES),
)
COMMANDS = {
    "describe": ToolCommand(
        "describe the features",
        (Flag("node-id", "ID", "the broker to ask, instead of any", whole),),
    ),
    "upgrade": ToolCommand("raise levels", (LEVELS, DRY_RUN, *RELEASE)),
    "downgrade": ToolCommand("lower levels", (LEVELS, UNSAFE, DRY_RUN, *RELEASE)),
    "disable": ToolCommand(
        "set levels to 0",
        (Flag("feature", "FEATURE", "may be repeated", disabled, True), UNSAFE, DRY_RUN),
    ),
}
CONTROLLER = Flag("bootstrap-controller", "HOST:PORT,…", refused="is not supported: use brokers")


def run(options: ParsedFlags) -> int | None:
    """Describe the features of a cluster, and change their levels.

    Examples:
      kafka-features.sh --bootstrap-server localhost:9092 describe
      kafka-features.sh --bootstrap-server localhost:9092 downgrade \\
          --feature transaction.version=1
    """
    with errors_as_refusals():
        wire = WireClient(brokers(options))
        if options.command == "describe":
            describe(wire, options)
        else:
            update(wire, options)
    return 0


def describe(wire: WireClient, options: ParsedFlags) -> None:
    at: Address | None = None
    if "node-id" in options:
        node_id = options.one("node-id")
        at = addresses(wire)[0].get(node_id)
        if at is None:
            raise Refusal(f"there is no broker {node_id}")
    request = {"client_software_name": "kafkalite", "client_software_version": __version__}
    response = wire.request(API_VERSIONS, request, at)
    finalized = {each.name: each.max_version_level for each in response.finalized_features}
    epoch = response.finalized_features_epoch
    for each in sorted(response.supported_features, key=lambda feature: feature.name):
        lowest, highest, level = (
            level_name(each.name, level)
            for level in (each.min_version, each.max_version, finalized.get(each.name, 0))
        )
        print(
            f"Feature: {each.name:<40}  SupportedMinVersion: {lowest:<15}"
            f"  SupportedMaxVersion: {highest:<15}  FinalizedVersionLevel: {level:<15}"
            f"  Epoch: {'-' if epoch == NONE else epoch}"
        )


def level_name(feature: str, level: int) -> str:
    """Return a level as Kafka prints it: that of metadata.version by the name of the release."""
    if feature != METADATA_VERSION:
        return str(level)
    at = level - METADATA_LEVEL_MIN
    return METADATA_VERSIONS[at] if 0 <= at < len(METADATA_VERSIONS) else f"UNKNOWN {level}"


def update(wire: WireClient, options: ParsedFlags) -> None:
    action, dry_run = options.command, "dry-run" in options
    updates = options.all("feature")
    check(action, updates)
    downgrade = UNSAFE_DOWNGRADE if "unsafe" in options else SAFE_DOWNGRADE
    upgrade_type = UPGRADE if action == "upgrade" else downgrade
    errors = send(wire, updates, upgrade_type, dry_run)
    for name, level in sorted(updates):
        if error := errors.get(name):
            goal = name if action == "disable" else f"{name} to {level}"
            print(f"{'Can not' if dry_run else 'Could not'} {action} {goal}. {error}")
        else:
            done = "disabled" if action == "disable" else f"{action}d to {level}"
            print(f"{name} {'can be' if dry_run else 'was'} {done}.")
    if errors:
        raise Refusal(f"{len(errors)} out of {len(updates)} operation(s) failed")


def check(action: str, updates: list[tuple[str, int]]) -> None:
    """Raise Refusal if the updates are invalid without regard to the cluster."""
    if not updates:
        raise Refusal(f"specify at least one --feature to {action}")
    for name, count in Counter(name for name, _ in updates).items():
        if count > 1:
            raise Refusal(f"feature {name} was specified more than once")
    for name, level in updates:
        if action == "upgrade" and not level:
            raise Refusal(f"{name} cannot be upgraded to 0: use `disable`")


def send(
    wire: WireClient, updates: list[tuple[str, int]], upgrade_type: int, dry_run: bool
) -> dict[str, str]:
    """Send the updates to the controller; return the errors by feature."""
    request = {
        "feature_updates": [
            {"feature": name, "max_version_level": level, "upgrade_type": upgrade_type}
            for name, level in updates
        ],
        "validate_only": dry_run,
    }
    response = wire.request(UPDATE_FEATURES, request, controller(wire))
    if response.error_code:
        return dict.fromkeys((name for name, _ in updates), error_text(response))
    return {each.feature: error_text(each) for each in response.results if each.error_code}


def error_text(result: Any) -> str:
    """Return the broker's message, or that of the error code."""
    error = BY_CODE.get(result.error_code, UnknownServerError)
    return result.error_message or str(error())


def controller(wire: WireClient) -> Address | None:
    """Return the address of the controller; None, for any broker, if there is none."""
    known, controller_id = addresses(wire)
    return known.get(controller_id)


def addresses(wire: WireClient) -> tuple[dict[int, Address], int]:
    """Return the addresses of the brokers by node id, and the node id of the controller."""
    response = wire.request(METADATA, {"topics": [], "allow_auto_topic_creation": False})
    known: dict[int, Address] = {each.node_id: (each.host, each.port) for each in response.brokers}
    return known, response.controller_id


TOOL = ShellTool((*CONNECTION, CONTROLLER), run, COMMANDS)
