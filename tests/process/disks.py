"""Small file systems of their own, which can fail: they need root and loop devices."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

MEMORY_BYTES = 48 << 20
IMAGE_BYTES = 24 << 20


def run(*command: str | Path) -> str:
    ended = subprocess.run([*map(str, command)], capture_output=True, text=True)
    if ended.returncode:
        raise OSError(f"{command[0]}: {ended.stderr.strip()}")
    return ended.stdout.strip()


class Disk:
    """An ext4 file system on a loop device, whose image is in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.memory = path.with_name(f"{path.name}-memory")
        self.device = ""
        for made in (self.memory, path):
            made.mkdir(parents=True)
        try:
            run("mount", "-t", "tmpfs", "-o", f"size={MEMORY_BYTES}", "none", self.memory)
            image = self.memory / "image"
            with image.open("wb") as file:
                file.truncate(IMAGE_BYTES)
            run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0", image)
            self.device = run("losetup", "-f", "--show", image)
            self.mount()
        except OSError:
            self.close()
            raise

    def mount(self) -> None:
        run("mount", "-o", "errors=remount-ro", self.device, self.path)

    def unmount(self) -> None:
        """As after the removal of the disk: its path leads to the empty directory below."""
        run("umount", "-l", self.path)

    def lose_writes(self) -> None:
        """From now on no block is written any more: flushes fail, and the pages are lost."""
        with contextlib.suppress(OSError), (self.memory / "fill").open("wb") as file:
            while True:
                os.write(file.fileno(), bytes(1 << 16))

    def accept_writes(self) -> None:
        (self.memory / "fill").unlink()

    def become_read_only(self) -> None:
        """As after an error of the disk that the file system cannot mend: EROFS from now on."""
        Path(f"/sys/fs/ext4/{Path(self.device).name}/trigger_fs_error").write_text("a test")

    def close(self) -> None:
        for command in (
            ["umount", "-l", self.path],
            ["losetup", "-d", self.device],
            ["umount", "-l", self.memory],
        ):
            with contextlib.suppress(OSError):
                run(*command)
