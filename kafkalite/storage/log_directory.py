"""LogDirectory: the data directory, whose it is, and that nobody else writes to it.

    .lock                  held by flock while a broker runs, with its pid; children inherit it
    meta.properties        Kafka's: version, cluster.id, node.id, directory.id

A directory is made when there is none, and taken when it is empty.  One that holds other files
and no meta.properties is somebody else's, and is left alone.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path

from kafkalite.config.settings import read_properties
from kafkalite.errors import KafkaError, Refusal
from kafkalite.ids import new_id, written_id
from kafkalite.storage.disk import Disk, put_file
from kafkalite.storage.layout import LOCK

META_PROPERTIES = "meta.properties"
META_VERSION = "1"
NOT_OURS = "name another directory with --data"


class LogDirectory:
    """One data directory, locked."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._lock = -1
        self.cluster_id = ""

    def lock(self) -> None:
        """Make it ours, and only ours; Refusal says why not."""
        self._make()
        names = [name for name in os.listdir(self.path) if name != LOCK]
        ours = META_PROPERTIES in names
        if names and not ours and names != [META_PROPERTIES + ".tmp"]:
            raise Refusal(
                f"{self.path} holds files and no {META_PROPERTIES}: it is not a kafkalite data"
                f" directory; {NOT_OURS}"
            )
        self._take_lock()
        self.cluster_id = self._read_meta() if ours else self._write_meta()

    def close(self) -> None:
        """Let the lock go."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _make(self) -> None:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError:
            raise Refusal(f"{self.path} is not a directory; {NOT_OURS}") from None
        except NotADirectoryError:
            raise Refusal(f"a part of {self.path} is not a directory; {NOT_OURS}") from None
        except OSError as error:
            raise Refusal(f"{self.path} cannot be made: {error.strerror}; {NOT_OURS}") from None

    def _take_lock(self) -> None:
        try:
            lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Refusal(f"{self.path} is not writable: {error.strerror}; {NOT_OURS}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
            os.close(lock)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise Refusal(f"{self.path} cannot be locked: {error.strerror}") from None
            who = f" by process {holder}" if holder.isdigit() else ""
            raise Refusal(
                f"{self.path} is already in use{who}; stop that broker, or {NOT_OURS}"
            ) from None
        self._lock = lock
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        except OSError:
            pass  # A full disk: who comes second is refused, only not told by whom.

    def _read_meta(self) -> str:
        path = self.path / META_PROPERTIES
        try:
            properties = read_properties(path)
            cluster_id = properties["cluster.id"]
            if properties["version"] != META_VERSION or not cluster_id:
                raise KeyError("version")
        except (KeyError, Refusal, KafkaError):
            self.close()
            raise Refusal(
                f"{path} is damaged: it does not say version={META_VERSION} and cluster.id;"
                " restore it from a copy, and the data directory with it"
            ) from None
        return cluster_id

    def _write_meta(self) -> str:
        cluster_id = written_id(new_id())
        lines = [
            "#",
            time.strftime("#%a %b %d %H:%M:%S UTC %Y", time.gmtime()),
            f"cluster.id={cluster_id}",
            f"directory.id={written_id(new_id())}",
            "node.id=0",
            f"version={META_VERSION}",
        ]
        try:
            put_file(self._disk, self.path / META_PROPERTIES, ("\n".join(lines) + "\n").encode())
        except OSError as error:
            self.close()
            raise Refusal(f"{self.path} is not writable: {error.strerror}; {NOT_OURS}") from None
        return cluster_id
