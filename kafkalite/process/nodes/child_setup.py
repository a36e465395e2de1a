"""The first and last steps of a node's process: close what belongs to the launcher, and exit.

The process is a fork of the launcher in the middle of its event loop, so none of the launcher's
code may continue here: no signal handler, no `finally`, no `atexit`.  It exits only by `os._exit`.

It is killed when its parent ends (PR_SET_PDEATHSIG): a node without a launcher would hold the data
directory, and no process would end it.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Collection
from typing import NoReturn

from kafkalite.errors import Refusal
from kafkalite.process.log_file import LOG_FILE, log_to
from kafkalite.process.loop import SHUTDOWN_SIGNALS
from kafkalite.process.nodes.spawn_spec import REFUSED, WRITE_BACK_FAILED, NodeMain, SpawnSpec
from kafkalite.storage.files.disk import WriteBackFailed

log = logging.getLogger("kafkalite.process")

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
libc = ctypes.CDLL(None, use_errno=True)

HANDLED_IN_CHILD = (*SHUTDOWN_SIGNALS, signal.SIGUSR2)
REASON_SIZE_MAX = 4096
"""Maximum size of the reason that a node sends; it fits into an empty pipe."""


def run_child(
    spec: SpawnSpec,
    main: NodeMain,
    launcher_pid: int,
    reason_pipe: int,
    descriptors: Collection[int],
) -> NoReturn:
    """Run a node's process, from just after the fork to the exit.

    `reason_pipe` takes the reason why it could not start; `descriptors` stay open.
    """
    code = 1
    try:
        log_to(spec.data / LOG_FILE, f"node-{spec.node_id}")
        detach_from_launcher(launcher_pid, {0, 1, 2, reason_pipe, *descriptors})
        libc.prctl(PR_SET_NAME, f"kafkalite-{spec.node_id}".encode(), 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED_IN_CHILD)
        code = main(spec)
    except Refusal as refusal:
        code = REFUSED
        log.error("%s", refusal)
        send_reason(reason_pipe, str(refusal))
    except WriteBackFailed as error:
        code = WRITE_BACK_FAILED
        log.critical("%s", error)
        send_reason(reason_pipe, str(error))
    except BaseException as error:
        log.critical(
            "Node %d exits because of an unexpected error. node=%d",
            spec.node_id, spec.node_id, exc_info=True,
        )  # fmt: skip
        send_reason(reason_pipe, f"this is an error in kafkalite: {type(error).__name__}: {error}")
    finally:
        exit_process(code)


def detach_from_launcher(launcher_pid: int, descriptors: Collection[int]) -> None:
    """Drop all that was inherited from the launcher, except these descriptors."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != launcher_pid:
        os._exit(1)  # the launcher ended before the kernel watched it for this process
    signal.set_wakeup_fd(-1)  # a pipe to the launcher's loop
    for number in HANDLED_IN_CHILD:
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
    # Descriptors are closed under the launcher's objects that own them.  These never notice: the
    # frames of this fork, which never return, keep them alive.
    begin = 0
    for descriptor in [*sorted(descriptors), os.sysconf("SC_OPEN_MAX")]:
        if begin < descriptor:  # closerange would take an empty range for all descriptors
            os.closerange(begin, descriptor)
        begin = descriptor + 1
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def send_reason(pipe: int, reason: str) -> None:
    """Send a reason to the launcher; ignore a pipe that an exec of the launcher has closed."""
    with contextlib.suppress(BrokenPipeError):
        os.write(pipe, reason.encode()[:REASON_SIZE_MAX])


def exit_process(code: int) -> NoReturn:
    """Flush the standard streams and exit."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader has closed it
            stream.flush()
    os._exit(code)
