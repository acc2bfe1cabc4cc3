"""Functions that run in a separate process. Belongs here: calling one, and handling the death of the process.

A C++ library may crash the process on a damaged file. The crash must not end this process with its leases and other
threads: only the child dies, and the caller gets an error with the file's path. Each process starts one child at the
first call and reuses it. The child ends with its parent.
"""

from __future__ import annotations

import atexit
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import TypeVar

from artemis_lifecycle.errors import StorageError

T = TypeVar("T")


class _Child:
    """A running child. It records which process started it, because a fork must not share it."""

    def __init__(self) -> None:
        ours, theirs = Pipe()
        self.parent = os.getpid()
        self.connection = ours
        code = f"from artemis_lifecycle.storage.isolated import serve; serve({theirs.fileno()})"
        # The parent may have found the package through a path that is in no environment variable.
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code], env=env, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )

    def end(self) -> int:
        """Close the connection, which ends a running child, and return its exit status."""
        self.connection.close()
        return self.process.wait()


_lock = threading.Lock()
_child: _Child | None = None


def isolated(function: Callable[..., T], path: str, *args: object, memory: int | None = None) -> T:
    """Call `function`, which must be importable by name, in the child. `path` is the file that it reads, `memory` the
    number of bytes that it may allocate; where the system enforces no limit, the file's own claims are not bounded.

    Returns what it returns and raises what it raises. Raises StorageError if the child dies. Runs one call at a time.
    """
    global _child
    with _lock:
        if _child is None or _child.parent != os.getpid():
            _child = _Child()
        try:
            _child.connection.send((function, args, memory))
            succeeded, value = _child.connection.recv()
        except (EOFError, ConnectionError) as error:
            status = _child.end()
            _child = None
            raise StorageError(
                f"The process that read the file died (exit status {status}): the file is damaged, or memory ran out",
                path=path,
                hint="check what wrote the file; restore it or write it again, then rerun",
            ) from error
    if succeeded:
        return value  # type: ignore[no-any-return]
    raise value


@atexit.register
def _end_child() -> None:
    if _child is not None and _child.parent == os.getpid():
        # The child only reads, so a call from another thread loses nothing.
        _child.process.kill()
        _child.end()


_SPARE = 1 << 30
"""Address space that allocators reserve and never use, and what the answer takes until it is sent."""


def _limit(memory: int | None) -> None:
    """Let this process allocate so many bytes beside what it has already."""
    most, (_, hard) = resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_AS)
    with suppress(ValueError, OSError):  # macOS has neither the file nor the limit.
        if memory is not None:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            most = pages * resource.getpagesize() + memory + _SPARE
        resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def serve(descriptor: int) -> None:
    """Answer calls until the parent closes the connection."""
    connection: Connection = Connection(descriptor)
    while True:
        try:
            function, args, memory = connection.recv()
        except EOFError:
            return
        try:
            _limit(memory)
            answer = (True, function(*args))
        except Exception as error:
            answer = (False, error)
        connection.send(answer)
