"""LogDirectories: the directories of log.dirs, of which one is the data directory.

    /disk1/                the data directory: node 0's logs, all other files of the broker
      log-directories      the directories by their ids, and a generation; the same in each
      __cluster_metadata-0/
      nodes/1/             a worker's logs
      nodes/2              a link to /disk2/nodes/2
    /disk2/
      .lock  meta.properties  log-directories
      __cluster_metadata-0/    a copy of the metadata log (broker/controller/metadata_copy.py)
      nodes/2/

A worker keeps all its logs in one directory, and ends with its disk.  Replicas of a partition are
placed in different directories first (coordination/followers.py), so what other nodes have is not
affected.  A new worker takes the directory with the fewest.

The generation increases with each change of the list, and the greatest one that is found holds.
With it, a directory that was left out once (`--without-dir`) is not taken for one that is in use
when it comes back, and an unmounted disk's empty directory is not taken for a new one.  If the data
directory is left out, another one takes its place: the one with the longest copy of the metadata
log.

With one directory there is no list, and nothing here writes anything.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kafkalite.errors import Refusal
from kafkalite.ids import METADATA_TOPIC
from kafkalite.storage.files import checkpoint, layout
from kafkalite.storage.files.disk import DISK, Disk, put_file, sync_directory
from kafkalite.storage.manager.log_directory import (
    META_PROPERTIES,
    LogDirectory,
    mark_node,
    read_meta,
)
from kafkalite.storage.manager.partition_transfer import boot_id

log = logging.getLogger("kafkalite.storage")


class DirectoryList(NamedTuple):
    """The content of the file `log-directories`."""

    cluster_id: str
    generation: int
    paths: Mapping[str, str]
    """The path of each directory by its id; the first is the data directory."""
    boot_id: str = ""
    """The boot of the host in which the broker was last ready."""

    @property
    def is_of_this_boot(self) -> bool:
        """True if no write of the last run was lost with the page cache."""
        return self.boot_id == boot_id() != ""


class LogDirectories:
    """The log directories of one broker, chosen from those of log.dirs.

    Args:
        paths: The directories of log.dirs.
        without: Directories that are lost (`--without-dir`): neither read nor written.
        disk: Makes the system calls.

    Raises:
        Refusal: A directory is named twice, is missing though the others list it, was left out
            before, or belongs to another cluster.  Nothing was changed.
    """

    def __init__(
        self, paths: Sequence[Path], without: Collection[Path] = (), disk: Disk = DISK
    ) -> None:
        self._disk = disk
        self._without = {_real(path) for path in without}
        used = [path for path in paths if _real(path) not in self._without]
        for at, path in enumerate(used):
            if _real(path) in {_real(other) for other in used[:at]}:
                raise Refusal(f"{path} is in log.dirs twice; name each directory once")
        _check_apart(used)
        if not used:
            raise Refusal("no log directory is left; leave out fewer with --without-dir")
        self._list = _newest(used)
        self.ran_in_this_boot = self._list is not None and self._list.is_of_this_boot
        """True if the broker was ready in this boot of the host.  The files of a lost data
        directory told so, too, and those of the one in its place do not until it is ready."""
        if self._list is None:
            self.data = _first_directory(used)
        else:
            found = self._check_listed(self._list, used)
            first = next(iter(self._list.paths))
            self.data = found.get(first) or _most_metadata([*found.values()])
        self.others: list[Path] = [path for path in used if path != self.data]
        """The directories besides the data directory."""
        self._locked: list[LogDirectory] = [LogDirectory(path, disk) for path in self.paths]
        if self.others and self._list is not None and _is_node_directory(self.data):
            raise Refusal(f"{self.data} is the directory of a node; name the one that has nodes/")

    @property
    def paths(self) -> list[Path]:
        """All directories, the data directory first."""
        return [self.data, *self.others]

    @property
    def cluster_id(self) -> str:
        """The id of the cluster, once the directories are locked."""
        return self._locked[0].cluster_id

    @property
    def descriptors(self) -> list[int]:
        """The descriptors of the locks, that of the data directory first."""
        return [each.descriptor for each in self._locked]

    def _check_listed(self, known: DirectoryList, used: Sequence[Path]) -> dict[str, Path]:
        """Return the directories of a list by their ids; raise Refusal if one is missing, or if
        another one is not new."""
        found: dict[str, Path] = {}
        for path in used:
            if not (path / META_PROPERTIES).exists():
                continue
            identity = read_meta(path)
            directory_id = identity.get("directory.id", "")
            if identity["cluster.id"] != known.cluster_id:
                raise Refusal(
                    f"{path} belongs to cluster {identity['cluster.id']}, not to"
                    f" {known.cluster_id}; take it out of log.dirs"
                )
            if directory_id not in known.paths:
                raise Refusal(
                    f"{path} was left out of the cluster before and has old logs; empty it to use"
                    " it again"
                )
            found[directory_id] = path
        for directory_id, name in known.paths.items():
            if directory_id not in found and _real(Path(name)) not in self._without:
                raise Refusal(
                    f"{name} is missing, or is not the directory that was there; mount it, or, if"
                    f" it is lost for good, start with --without-dir {name}: its replicas are"
                    " fetched again, and partitions without another replica begin empty"
                )
        if not found:
            raise Refusal(
                "every directory with the metadata log is left out; leave out fewer with"
                " --without-dir"
            )
        return found

    # -- opening and closing -----------------------------------------------------------------

    def lock(self) -> None:
        """Lock all directories, make new ones, and record a change of the list.

        Raises Refusal if a directory cannot be used; then none is locked.
        """
        cluster_id = ""
        try:
            for each in self._locked:
                each.lock(cluster_id)
                cluster_id = each.cluster_id
            try:
                self._save_list()
                self._link_nodes()
            except OSError as error:
                raise Refusal(
                    f"{error.filename or self.data} cannot be written: {error.strerror}"
                ) from None
        except Refusal:
            self.close()
            raise

    def adopt(self, descriptors: Sequence[int]) -> None:
        """Continue with the locks that this process took before it executed itself again."""
        for each, descriptor in zip(self._locked, descriptors, strict=True):
            each.adopt(descriptor)

    def close(self) -> None:
        """Release the locks, unless other processes hold them as well."""
        for each in self._locked:
            each.close()

    def _save_list(self) -> None:
        """Write the list to every directory if it is new, has changed or is missing in one."""
        if not self.others and self._list is None:
            return
        paths = {read_meta(path)["directory.id"]: str(path) for path in self.paths}
        known = self._list
        if known is None or [*known.paths.items()] != [*paths.items()]:
            generation, boot = (known.generation + 1, known.boot_id) if known else (1, "")
            self._list = DirectoryList(self.cluster_id, generation, paths, boot)
        self._write_list()

    def note_boot(self) -> None:
        """Record in the list that the broker is ready in this boot of the host."""
        if self._list is None or self._list.is_of_this_boot:
            return
        self._list = self._list._replace(boot_id=boot_id())
        try:
            self._write_list()
        except OSError as error:
            log.warning(
                "List of log directories cannot be written. path=%s error=%r",
                error.filename, error.strerror,
            )  # fmt: skip

    def _write_list(self) -> None:
        """Write the list to each directory that has another one."""
        assert self._list is not None
        content = {**self._list._asdict(), "paths": [*self._list.paths.items()]}
        for path in self.paths:
            if _read_list(path) != self._list:
                put_file(self._disk, path / layout.LOG_DIRECTORIES, checkpoint.sealed(content))

    # -- the directories of nodes ------------------------------------------------------------

    def _link_nodes(self) -> None:
        """Link each node's directory that is in another log directory, and forget the links to
        directories that were left out."""
        if self._list is None:
            return
        homes: dict[str, Path] = {}
        for path in self.others:
            for directory in _node_directories(path):
                if directory.name in homes:
                    raise Refusal(
                        f"node {directory.name} is in {homes[directory.name]} and in {directory};"
                        " move one of them away"
                    )
                homes[directory.name] = directory
        nodes = self.data / layout.NODES
        for link in list(nodes.iterdir()) if nodes.is_dir() else ():
            if link.is_symlink() and link.readlink() != homes.get(link.name):
                is_left_out = link.readlink().parent.parent not in self.paths
                if is_left_out and link.name not in homes:
                    self._forget(link)  # before the link is gone: a crash must not keep the mark
                self._disk.unlink(link)
            elif not link.is_symlink() and link.name in homes:
                raise Refusal(
                    f"node {link.name} is in {link} and in {homes[link.name]}; move one of them"
                    " away"
                )
        for directory in homes.values():
            self._link(directory)
        for directory in _node_directories(self.data):
            mark_node(self._disk, directory)  # as in _link

    def _forget(self, link: Path) -> None:
        """Remove the mark that a node's directory was made: it was left out, and is made again."""
        log.warning(
            "Directory of node %s was left out; the node starts without logs. node=%s path=%s",
            link.name, link.name, link,
        )  # fmt: skip
        mark = layout.node_mark(link)
        if mark.exists():
            self._disk.unlink(mark)

    def _link(self, directory: Path) -> None:
        nodes = self.data / layout.NODES
        if not nodes.is_dir():
            self._disk.mkdir(nodes, 0o700)
            sync_directory(self._disk, self.data)
        link = nodes / directory.name
        if not link.is_symlink():
            os.symlink(directory, link)
            sync_directory(self._disk, nodes)
        # The data directory may have taken the place of the one that had the mark.
        mark_node(self._disk, link)

    def nodes_in(self, node_ids: Iterable[int]) -> dict[Path, list[int]]:
        """Return the directories, and which of these nodes keep their logs in each."""
        found: dict[Path, list[int]] = {path: [] for path in self.paths}
        for node_id in node_ids:
            found[layout.log_directory(layout.node_directory(self.data, node_id))].append(node_id)
        return found

    def make_node_directory(self, node_id: int) -> None:
        """Make the directory of a new node, where the fewest nodes are, if there are several log
        directories.

        Raises OSError if that fails, or if a directory that the node had is gone.  A node that was
        started in its place would begin without logs, and the supervisor without decisions: on the
        disk below, if a file system was unmounted, and with the old logs once it is mounted again.
        """
        directory = layout.node_directory(self.data, node_id)
        homes = (self.data, layout.log_directory(directory))
        for each in self._locked:
            if each.path in homes and not each.is_present:
                raise FileNotFoundError(
                    errno.ENOENT,
                    f"{each.path} is not the directory of the start any more; mount it, and start"
                    " the broker again if that is not enough",
                )
        if not node_id or directory.exists():
            return
        if directory.is_symlink() or layout.node_mark(directory).exists():
            raise FileNotFoundError(
                errno.ENOENT,
                f"{layout.own_directory(directory)} is missing; restore it, or, if it is lost for"
                " good, create an empty one",
            )
        if self.others:
            self._make_in_emptiest(node_id)

    def _make_in_emptiest(self, node_id: int) -> None:
        present = [each.path for each in self._locked if each.is_present]
        counts = {path: sum(1 for _ in _node_directories(path)) for path in present}
        emptiest = min(present, key=counts.__getitem__)
        nodes = emptiest / layout.NODES
        for path in (nodes, nodes / str(node_id)):
            if not path.is_dir():
                self._disk.mkdir(path, 0o700)
                sync_directory(self._disk, path.parent)
        if emptiest != self.data:
            self._link(nodes / str(node_id))


def _real(path: Path) -> str:
    return os.path.realpath(path)


def _check_apart(paths: Sequence[Path]) -> None:
    """Raise Refusal if one of several directories is in another one, and would be lost with it, or
    has the name of a node's."""
    for path in paths if len(paths) > 1 else ():
        if layout.is_of_worker(path):
            raise Refusal(f"{path} is named as the directory of a node; choose another name")
        for other in paths:
            if Path(_real(other)) in Path(_real(path)).parents:
                raise Refusal(f"{path} is in {other}; name directories that are not in each other")


def _node_directories(path: Path) -> Iterator[Path]:
    """Yield the directories of nodes in a log directory, but not the links to others."""
    nodes = path / layout.NODES
    for directory in sorted(nodes.iterdir()) if nodes.is_dir() else ():
        if directory.name.isdecimal() and directory.is_dir() and not directory.is_symlink():
            yield directory


def _is_node_directory(path: Path) -> bool:
    return (path / META_PROPERTIES).exists() and read_meta(path)["node.id"] != "0"


def _read_list(path: Path) -> DirectoryList | None:
    """Return a directory's list, None if it has none; raise Refusal if it is damaged."""
    file = path / layout.LOG_DIRECTORIES
    try:
        stored = checkpoint.unsealed(file.read_bytes())
        paths = {str(directory_id): str(of) for directory_id, of in stored["paths"]}
        return DirectoryList(
            str(stored["cluster_id"]), int(stored["generation"]), paths, str(stored["boot_id"])
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refusal(
            f"{file} cannot be read: {error}; copy it from another log directory, or leave the"
            f" directory out with --without-dir {path}"
        ) from None


def listed_paths(data: Path) -> list[Path]:
    """Return the log directories that a data directory lists, none if it is the only one."""
    try:
        known = _read_list(data)
    except Refusal:
        return []
    return [Path(path) for path in known.paths.values()] if known is not None else []


def _newest(paths: Sequence[Path]) -> DirectoryList | None:
    lists = [found for path in paths if (found := _read_list(path)) is not None]
    return max(lists, key=lambda found: found.generation, default=None)


def _first_directory(paths: Sequence[Path]) -> Path:
    """Return the data directory of a broker that had one directory until now, or the first."""
    used = [path for path in paths if (path / META_PROPERTIES).exists()]
    for path in used[1:]:
        # Of one cluster if a first start ended before it had written the list.
        if read_meta(path)["cluster.id"] != read_meta(used[0])["cluster.id"]:
            raise Refusal(
                f"{used[0]} and {path} are data directories of two brokers; name one of them only"
            )
    return used[0] if used else paths[0]


def _most_metadata(paths: Sequence[Path]) -> Path:
    """Return the directory with the most of the metadata log; among equal ones, the first.

    The copies are equal to the log up to their ends, so the last segment and its size tell.
    """

    def end(path: Path) -> tuple[int, int]:
        directory = path / layout.directory_name(METADATA_TOPIC, 0)
        bases = {
            base: file
            for file in (directory.iterdir() if directory.is_dir() else ())
            if (base := layout.offset_of(file.name, layout.LOG)) is not None
        }
        if not bases:
            return -1, 0
        newest = max(bases)
        return newest, bases[newest].stat().st_size

    return max(paths, key=end)
