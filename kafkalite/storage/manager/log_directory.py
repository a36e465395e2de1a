"""LogDirectory: the data directory, its owner, and the lock that keeps other brokers out.

    .lock                  locked by flock while a broker runs, with its pid; children inherit it
    meta.properties        Kafka's: version, cluster.id, node.id, directory.id

A missing directory is made, and an empty one is used.  A directory that holds other files and no
meta.properties is not a kafkalite data directory and is left alone.

The launcher takes the lock and every node's process inherits its descriptor, so the lock is held
until the last of them has exited.  A broker that starts while the children of a dead launcher are
still exiting waits for them.  The directory of each further node, nodes/1 and so on, has a
meta.properties of its own.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from kafkalite.config.settings import read_properties
from kafkalite.errors import KafkaError, Refusal
from kafkalite.ids import new_id, written_id
from kafkalite.storage.files.disk import DISK, Disk, put_file, sync_directory
from kafkalite.storage.files.layout import LOCK, node_directory, node_mark

META_PROPERTIES = "meta.properties"
META_VERSION = "1"
LOST_AND_FOUND = "lost+found"
"""A directory that an ext4 file system has in its root from the start."""

REMEDY = "name another directory with --data"

DYING_S_MAX = 5.0
"""Maximum time for which the children of a dead launcher may take to exit."""

LOCK_RETRY_S = 0.01


class LogDirectory:
    """One data directory, locked by this broker."""

    def __init__(self, path: Path, disk: Disk = DISK) -> None:
        self.path = path
        self._disk = disk
        self._lock = -1
        self.cluster_id = ""

    @property
    def descriptor(self) -> int:
        """The lock's descriptor, which must be inheritable before an exec (see `adopt`)."""
        assert self._lock >= 0, f"{self.path} is not locked"
        return self._lock

    def lock(self, cluster_id: str = "") -> None:
        """Make or check the directory and lock it; raise Refusal if it cannot be used.

        A new one is given this cluster id, or one of its own.
        """
        try:
            str(self.path).encode()
        except UnicodeEncodeError:
            # DescribeLogDirs could not send this path: strings in the protocol are UTF-8.
            raise Refusal(
                f"the name of the data directory {ascii(str(self.path))} is not UTF-8; {REMEDY}"
            ) from None
        self._make()
        names = [name for name in os.listdir(self.path) if name not in (LOCK, LOST_AND_FOUND)]
        ours = META_PROPERTIES in names
        if names and not ours and names != [META_PROPERTIES + ".tmp"]:
            raise Refusal(
                f"{self.path} has files but no {META_PROPERTIES}: it is not a kafkalite data"
                f" directory; {REMEDY}"
            )
        self._take_lock()
        try:
            self.cluster_id = self._read_meta() if ours else self._write_meta(cluster_id)
        except Refusal:
            self.close()
            raise

    def adopt(self, descriptor: int) -> None:
        """Continue with a lock that this process took before it executed itself again (exec)."""
        os.set_inheritable(descriptor, False)
        self._lock = descriptor
        self.cluster_id = self._read_meta()

    @property
    def is_present(self) -> bool:
        """False if the path does not lead to the directory that was locked any more: it was
        removed, or its file system was unmounted."""
        try:
            return os.path.samestat(os.stat(self.path / LOCK), os.fstat(self._lock))
        except OSError:
            return False

    def close(self) -> None:
        """Release the lock, unless other processes hold it as well."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _make(self) -> None:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError:
            raise Refusal(f"{self.path} is not a directory; {REMEDY}") from None
        except NotADirectoryError:
            raise Refusal(f"a parent of {self.path} is not a directory; {REMEDY}") from None
        except OSError as error:
            raise Refusal(f"{self.path} cannot be created: {error.strerror}; {REMEDY}") from None

    def _take_lock(self) -> None:
        try:
            lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Refusal(f"{self.path} is not writable: {error.strerror}; {REMEDY}") from None
        try:
            self._wait_for(lock)
        except Refusal:
            os.close(lock)
            raise
        self._lock = lock
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        except OSError:
            pass  # a full disk: a second broker is refused, but cannot name this process

    def _wait_for(self, lock: int) -> None:
        """Take the lock, waiting for the children of a dead holder to exit."""
        deadline = time.monotonic() + DYING_S_MAX
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise Refusal(
                        f"{self.path} cannot be locked: {error.strerror}; {REMEDY}"
                    ) from None
            holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
            if not holder.isdigit():
                raise Refusal(f"{self.path} is already in use; stop that broker, or {REMEDY}")
            if is_alive(int(holder)):
                raise Refusal(
                    f"{self.path} is already in use by process {holder}; stop that broker, or"
                    f" {REMEDY}"
                )
            if time.monotonic() >= deadline:
                raise Refusal(
                    f"{self.path} is still in use by a child of process {holder}, which has ended;"
                    f" stop that child, or {REMEDY}"
                )
            time.sleep(LOCK_RETRY_S)

    def _read_meta(self) -> str:
        return read_meta(self.path)["cluster.id"]

    def _write_meta(self, cluster_id: str) -> str:
        cluster_id = cluster_id or written_id(new_id())
        try:
            write_meta(self._disk, self.path, cluster_id, 0)
        except OSError as error:
            raise Refusal(f"{self.path} is not writable: {error.strerror}; {REMEDY}") from None
        return cluster_id


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def open_node_directory(disk: Disk, data: Path, cluster_id: str, node_id: int) -> Path:
    """Return the directory of a node's logs, made if missing; raise Refusal if it is another's."""
    directory = node_directory(data, node_id)
    try:
        if node_id:
            make_node_directory(disk, directory)
        if not (directory / META_PROPERTIES).exists():
            write_meta(disk, directory, cluster_id, node_id)
    except OSError as error:
        raise Refusal(f"{directory} cannot be created: {error.strerror}; {REMEDY}") from None
    found = read_meta(directory)
    if (found["cluster.id"], found["node.id"]) != (cluster_id, str(node_id)):
        raise Refusal(
            f"{directory} belongs to node {found['node.id']} of cluster {found['cluster.id']}, not"
            f" to node {node_id} of cluster {cluster_id}; restore the directory that was there"
        )
    return directory


def make_node_directory(disk: Disk, directory: Path) -> None:
    """Make a further node's directory if missing, and the mark that it was made."""
    if directory.is_dir() and (directory / META_PROPERTIES).exists():
        return  # node 0's, or one that is already in use
    for path in (directory.parent, directory):
        if not path.is_dir():
            with suppress(FileExistsError):  # several nodes start at once
                disk.mkdir(path, 0o700)
            sync_directory(disk, path.parent)
    mark_node(disk, directory)


def mark_node(disk: Disk, directory: Path) -> None:
    """Mark that a further node's directory was made."""
    mark = node_mark(directory)
    if not mark.exists():
        disk.open(mark, os.O_WRONLY | os.O_CREAT).close()
        sync_directory(disk, mark.parent)


def read_meta(directory: Path) -> dict[str, str]:
    """Return the properties in a directory's meta.properties; raise Refusal if it is damaged."""
    path = directory / META_PROPERTIES
    try:
        properties = read_properties(path)
        if properties["version"] != META_VERSION or not properties["cluster.id"]:
            raise KeyError("version")
        return {"node.id": "0", **properties}
    except (KeyError, Refusal, KafkaError):
        raise Refusal(
            f"{path} is damaged: it lacks version={META_VERSION} or cluster.id; restore it from a"
            " backup of the data directory"
        ) from None


def write_meta(disk: Disk, directory: Path, cluster_id: str, node_id: int) -> None:
    """Write a directory's meta.properties."""
    lines = [
        "#",
        time.strftime("#%a %b %d %H:%M:%S UTC %Y", time.gmtime()),
        f"cluster.id={cluster_id}",
        f"directory.id={written_id(new_id())}",
        f"node.id={node_id}",
        f"version={META_VERSION}",
    ]
    put_file(disk, directory / META_PROPERTIES, ("\n".join(lines) + "\n").encode())
