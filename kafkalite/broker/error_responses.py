"""Response fields shared by the handlers: errors of the request or of one entry of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kafkalite.errors import BY_CODE, InvalidRequest, KafkaError, UnknownServerError

MESSAGE_LENGTH_MAX = 1_000
"""Maximum length of an error message: it may quote what a client sent, which can be longer than a
response field can hold."""

REPETITIONS_MAX = 2
"""Number of times a request may name a resource whose description is much longer than its name."""


def entry_responses(
    entries: Iterable[Any],
    key: str,
    respond: Callable[[Any], dict[str, Any]],
    messages: bool = True,
) -> list[dict[str, Any]]:
    """Return a response entry per request entry; an entry's error is its error_code only.

    `key` is the field that identifies an entry; `messages` is true if the schema's entry has an
    error_message field.
    """
    responses = []
    for entry in entries:
        identity = {key: getattr(entry, key, entry)}
        try:
            responses.append({**identity, "error_code": 0, **respond(entry)})
        except KafkaError as error:
            responses.append({**identity, **error_fields(error, messages)})
    return responses


def check_repetitions(count: int) -> None:
    """Raise InvalidRequest if a request repeats a name so often that the response has no bound."""
    if count > REPETITIONS_MAX:
        raise InvalidRequest(
            f"The request names the same resource {count} times; at most {REPETITIONS_MAX} times"
            " are allowed."
        )


def error_fields(error: KafkaError, messages: bool = True) -> dict[str, Any]:
    """Return the response fields that report an error."""
    if messages:
        return {"error_code": error.code, "error_message": str(error)[:MESSAGE_LENGTH_MAX]}
    return {"error_code": error.code}


def outcome_fields(error: KafkaError | None) -> dict[str, Any]:
    """Return the response fields of a success or an error."""
    return error_fields(error) if error is not None else {"error_code": 0, "error_message": None}


def error_of(code: int, message: str | None = None) -> KafkaError | None:
    """Return the error that such fields report, or None."""
    return BY_CODE.get(code, UnknownServerError)(message) if code else None
