"""SCRAM credentials of users, as kafka-configs.sh describes and alters them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from kafkalite.cli.clients import settled
from kafkalite.cli.resource import ValueChange
from kafkalite.cli.shell_tools.cluster import results_of
from kafkalite.errors import Refusal

MECHANISMS = {
    "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
}
NAMES = {mechanism: name for name, mechanism in MECHANISMS.items()}
ITERATIONS = "4096"


def describe(admin: AdminClient, user: str | None) -> None:
    """Print the credentials of a user, or of all users."""
    requested: Any = admin.describe_user_scram_credentials([user] if user is not None else None)
    found, errors = settled(requested) if user is not None else (requested.result(), {})
    for error in errors.values():
        if error.code() != KafkaError.RESOURCE_NOT_FOUND:
            raise Refusal(f"user {user}: {error.str()}")
    for name, credentials in sorted(found.items()):
        shown = ", ".join(
            f"{NAMES[known.mechanism]}=iterations={known.iterations}"
            for known in credentials.scram_credential_infos
        )
        print(f"SCRAM credential configs for user-principal '{name}' are {shown}")


def change(admin: AdminClient, user: str, changes: Sequence[ValueChange]) -> None:
    """Set or delete credentials."""
    alterations: list[UserScramCredentialAlteration] = []
    for key, _, value in changes:
        if key not in MECHANISMS:
            raise Refusal(f"a user has no config {key}; use {' or '.join(MECHANISMS)}")
        if value is None:
            alterations.append(UserScramCredentialDeletion(user, MECHANISMS[key]))
        else:
            alterations.append(login(user, key, value))
    results_of(admin.alter_user_scram_credentials(alterations))


def login(user: str, name: str, text: str) -> UserScramCredentialUpsertion:
    """Parse a credential: `iterations=8192,password=secret`."""
    fields = dict(part.strip().partition("=")[::2] for part in text.split(","))
    iterations, password = fields.pop("iterations", ITERATIONS), fields.pop("password", "")
    if fields or not password or not (iterations.isascii() and iterations.isdecimal()):
        raise Refusal(f"{name} must be of the form [iterations=8192,password=…]")
    known = ScramCredentialInfo(MECHANISMS[name], int(iterations))
    return UserScramCredentialUpsertion(user, known, password.encode())
