"""CURVE: who may connect, by their keys.

    server.key_secret     the gateway's own, which nobody else reads
    clients/NAME.key      the public key of each client that is let in

The files are ZeroMQ's own certificates, as `kafkalite gateway keys` and pyzmq's `zmq.auth` make
them.  The directory is looked at for whoever connects, so a key counts from when it is put there,
and a connection that stands is not cut when its key is removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import zmq
import zmq.auth

from kafkalite.errors import Refusal


def make_keys(directory: Path, name: str) -> Path:
    """A new pair, NAME.key and NAME.key_secret; the secret one's path, which only its user reads.
    Refusal where there is one of that name."""
    public, secret = directory / f"{name}.key", directory / f"{name}.key_secret"
    for path in (public, secret):
        if path.exists():
            raise Refusal(f"{path} is there already; remove it, or choose another name")
    mask = os.umask(0o077)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        zmq.auth.create_certificates(directory, name)
    finally:
        os.umask(mask)
    public.chmod(0o644)
    return secret


def own_keys(path: Path) -> tuple[bytes, bytes]:
    """The gateway's public and secret key; Refusal when the file does not have both."""
    try:
        public, secret = zmq.auth.load_certificate(path)
    except (OSError, ValueError) as fault:
        raise Refusal(f"{path} is no certificate: {fault}") from None
    if secret is None:
        raise Refusal(f"{path} has no secret key; the gateway's own file is NAME.key_secret")
    return public, secret


class Clients:
    """Who is let in, by the directory of their public keys; `refused(sentence)` is told of others.

    Called in the authenticator's thread.
    """

    def __init__(self, directory: Path, refused: Callable[[str], object]) -> None:
        self.directory = directory
        self._refused = refused
        self._seen: object = None
        self._names: dict[bytes, str] = {}
        self._look()

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether the client with this public key (Z85) is let in; pyzmq asks it so."""
        try:
            self._look()
        except Refusal as refusal:
            self._refused(str(refusal))
            return False
        if key not in self._names:
            self._refused(f"a client with the key {key.decode(errors='replace')} was not let in")
            return False
        return True

    def _look(self) -> None:
        """Read the directory, if it is not as it was."""
        try:
            files = sorted(self.directory.glob("*.key"))
            seen = [(path, *changes_of(os.stat(path))) for path in files]
            if not self.directory.is_dir():
                raise NotADirectoryError(20, os.strerror(20))
        except OSError as fault:
            raise Refusal(f"{self.directory} cannot be read: {fault.strerror}") from None
        if seen != self._seen:
            self._names = dict(self._read(files))
            self._seen = seen

    def _read(self, files: list[Path]) -> list[tuple[bytes, str]]:
        found = []
        for path in files:
            try:
                found.append((zmq.auth.load_certificate(path)[0], path.stem))
            except (OSError, ValueError) as fault:
                self._refused(f"{path} is no certificate: {fault}")
        return found


def changes_of(status: os.stat_result) -> tuple[int, int, int]:
    """What is another whenever a file, or what it holds, is another."""
    return status.st_ino, status.st_size, status.st_ctime_ns
