"""CURVE: admission of clients by their public keys.

    server.key_secret     the gateway's own keys, readable by its user only
    clients/NAME.key      the public key of each admitted client

The files are ZeroMQ certificates, as created by `kafkalite gateway keys` and pyzmq's `zmq.auth`.
The directory is checked for every new connection, so a key is valid as soon as its file exists.
Removing a key does not end existing connections.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import zmq
import zmq.auth

from kafkalite.errors import Refusal


def make_keys(directory: Path, name: str) -> Path:
    """Create a key pair, NAME.key and NAME.key_secret, and return the path of the secret file.

    Only its user can read the latter.  Raises Refusal if one of the files exists.
    """
    public, secret = directory / f"{name}.key", directory / f"{name}.key_secret"
    for path in (public, secret):
        if path.exists():
            raise Refusal(f"{path} exists already; remove it, or choose another name")
    mask = os.umask(0o077)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        zmq.auth.create_certificates(directory, name)
    finally:
        os.umask(mask)
    public.chmod(0o644)
    return secret


def own_keys(path: Path) -> tuple[bytes, bytes]:
    """Return the gateway's public and secret key; raise Refusal if the file lacks one."""
    try:
        public, secret = zmq.auth.load_certificate(path)
    except (OSError, ValueError) as error:
        raise Refusal(f"{path} is not a ZeroMQ certificate: {error}") from None
    if secret is None:
        raise Refusal(f"{path} has no secret key; the gateway's own file is NAME.key_secret")
    return public, secret


class AllowedClients:
    """The admitted clients, by the directory of their public keys.

    `refused(sentence)` reports others.  Called in the authenticator's thread.
    """

    def __init__(self, directory: Path, refused: Callable[[str], object]) -> None:
        self.directory = directory
        self._refused = refused
        self._file_states: object = None
        self._names: dict[bytes, str] = {}
        self._reload()

    def callback(self, domain: str, key: bytes) -> bool:
        """Return True if the client with this public key (Z85) is admitted; called by pyzmq."""
        try:
            self._reload()
        except Refusal as refusal:
            self._refused(str(refusal))
            return False
        if key not in self._names:
            shown = key.decode(errors="replace")
            self._refused(f"the key {shown} of a client is not in {self.directory}")
            return False
        return True

    def _reload(self) -> None:
        """Read the directory if it has changed."""
        try:
            files = sorted(self.directory.glob("*.key"))
            file_states = [(path, *changes_of(os.stat(path))) for path in files]
            if not self.directory.is_dir():
                raise NotADirectoryError(20, os.strerror(20))
        except OSError as error:
            raise Refusal(f"{self.directory} cannot be read: {error.strerror}") from None
        if file_states != self._file_states:
            self._names = dict(self._read(files))
            self._file_states = file_states

    def _read(self, files: list[Path]) -> list[tuple[bytes, str]]:
        found = []
        for path in files:
            try:
                found.append((zmq.auth.load_certificate(path)[0], path.stem))
            except (OSError, ValueError) as error:
                self._refused(f"{path} is not a ZeroMQ certificate: {error}")
        return found


def changes_of(status: os.stat_result) -> tuple[int, int, int]:
    """Return values that differ whenever the file or its content does."""
    return status.st_ino, status.st_size, status.st_ctime_ns
