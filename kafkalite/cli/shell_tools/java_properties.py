"""Translation of Java client properties to librdkafka, and property files.

Most names are the same.  Those that differ are translated; librdkafka rejects unknown ones, so that
no property is ignored.

Left out: key stores and trust stores in the JKS format; PEM and PKCS#12 are supported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from kafkalite.errors import Refusal

ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
RENAMED = {
    "buffer.memory": "queue.buffering.max.kbytes",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.partition.fetch.bytes": "fetch.message.max.bytes",
    "max.request.size": "message.max.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "request.timeout.ms": "socket.timeout.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "socket.connection.setup.timeout.max.ms": "socket.connection.setup.timeout.ms",
    "ssl.enabled.protocols": "",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.protocol": "",
    "ssl.truststore.certificates": "ssl.ca.pem",
}
"""Java's name to librdkafka's; an empty name is decided by OpenSSL."""

RESETS = {"none": "error", "earliest": "earliest", "latest": "latest"}
ASSIGNORS = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "CooperativeStickyAssignor": "cooperative-sticky",
}


def translated(given: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return properties under librdkafka's names; the last value of a name is used."""
    java = {name: value.strip() for name, value in given}
    found: dict[str, str] = {}
    found |= trust_store(java)
    found |= key_store(java)
    for name, value in java.items():
        if name in SPECIAL:
            found |= SPECIAL[name](value)
        elif RENAMED.get(name, name):
            found[RENAMED.get(name, name)] = value
    return found


def trust_store(java: dict[str, str]) -> dict[str, str]:
    kind = java.pop("ssl.truststore.type", "JKS").upper()
    path = java.pop("ssl.truststore.location", None)
    java.pop("ssl.truststore.password", None)
    if path is None:
        return {}
    if kind != "PEM":
        raise Refusal(
            f"ssl.truststore.type={kind} is not supported: convert the store to PEM with keytool"
        )
    return {"ssl.ca.location": path}


def key_store(java: dict[str, str]) -> dict[str, str]:
    kind = java.pop("ssl.keystore.type", "JKS").upper()
    path = java.pop("ssl.keystore.location", None)
    password = java.pop("ssl.keystore.password", None)
    if path is None:
        return {}
    if kind == "PEM":
        return {"ssl.certificate.location": path, "ssl.key.location": path}
    if kind != "PKCS12":
        raise Refusal(
            f"ssl.keystore.type={kind} is not supported: convert the store to PKCS12 with keytool"
        )
    store = {"ssl.keystore.location": path}
    return store if password is None else store | {"ssl.keystore.password": password}


def jaas(text: str) -> dict[str, str]:
    """Return the name and the password in a JAAS line, for the modules that have them."""
    if not re.search(r"\b(Plain|Scram)LoginModule\b", text):
        raise Refusal("sasl.jaas.config must use PlainLoginModule or ScramLoginModule")
    fields = dict(re.findall(r"(\w+)\s*=\s*\"((?:[^\"\\]|\\.)*)\"", text))
    if not {"username", "password"} <= fields.keys():
        raise Refusal('sasl.jaas.config must contain username="…" and password="…"')
    credentials = {name: re.sub(r"\\(.)", r"\1", fields[name]) for name in ("username", "password")}
    return {f"sasl.{name}": value for name, value in credentials.items()}


def memory(text: str) -> dict[str, str]:
    """Convert Java's buffer size in bytes to librdkafka's in KiB."""
    return {"queue.buffering.max.kbytes": str(max(1, number("buffer.memory", text) // 1024))}


def reset(text: str) -> dict[str, str]:
    if text not in RESETS:
        raise Refusal(f"auto.offset.reset must be one of {', '.join(RESETS)}, not {text!r}")
    return {"auto.offset.reset": RESETS[text]}


def assignors(text: str) -> dict[str, str]:
    names = [name.strip().rpartition(".")[2] for name in text.split(",")]
    for name in names:
        if name not in ASSIGNORS:
            raise Refusal(
                f"partition.assignment.strategy must be one of {', '.join(ASSIGNORS)}, not {name}"
            )
    return {"partition.assignment.strategy": ",".join(ASSIGNORS[name] for name in names)}


def endpoint_check(text: str) -> dict[str, str]:
    return {"ssl.endpoint.identification.algorithm": text or "none"}


def number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise Refusal(f"{name} must be a number, not {text!r}")
    return int(text)


SPECIAL: dict[str, Callable[[str], dict[str, str]]] = {
    "auto.offset.reset": reset,
    "buffer.memory": memory,
    "partition.assignment.strategy": assignors,
    "sasl.jaas.config": jaas,
    "ssl.endpoint.identification.algorithm": endpoint_check,
}


# -- files -----------------------------------------------------------------------------------------


def properties_in(path: str) -> list[tuple[str, str]]:
    """Return the properties in a file, in its order."""
    return list(pairs(Path(path).read_text(encoding="utf-8", errors="surrogateescape")))


def pairs(text: str) -> Iterator[tuple[str, str]]:
    """Yield names and values in Java's property format.

    A name ends at the first `=`, `:` or blank without a backslash before it; `#` and `!` begin
    comments; a backslash at the end continues a line.
    """
    for line in logical_lines(text):
        parts = re.match(r"((?:\\.|[^\\=:\s])*)[ \t\f]*[=:]?[ \t\f]*(.*)", line, re.DOTALL)
        assert parts is not None
        yield unescaped(parts[1]), unescaped(parts[2])


def logical_lines(text: str) -> Iterator[str]:
    begun = ""
    for line in re.split(r"\r\n|\r|\n", text):
        line = line.lstrip(" \t\f")
        if not begun and (not line or line[0] in "#!"):
            continue
        begun += line
        backslashes = len(begun) - len(begun.rstrip("\\"))
        if backslashes % 2:
            begun = begun[:-1]
        else:
            yield begun
            begun = ""
    if begun:
        yield begun


def unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else ESCAPED.get(code, code)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", character, text, flags=re.DOTALL)
