"""Functions that run in other processes of this machine.

A C++ library may crash the process on a damaged file. The crash must not end this process with its leases and other
threads: only the child dies, and the caller gets an error with the file's path (`isolated`). Large work of a local
session runs in several processes (`spread`): they are forked from a child that has loaded their libraries, never from
this process, which has threads. All of them end with this process, however it ends.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from artemis_lifecycle.errors import StorageError

T = TypeVar("T")

_DIED = (EOFError, ConnectionError)
_NO_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""numpy and pyarrow start threads when they are loaded, and only a process without threads is safe to fork."""


class _Child:
    """A running child that serves one connection. It records which process started it, because a fork must not share
    it."""

    def __init__(self, serves: Callable[[int], None]) -> None:
        ours, theirs = Pipe()
        self.parent = os.getpid()
        self.connection = ours
        code = f"from {__name__} import {serves.__name__} as serves; serves({theirs.fileno()})"
        # The parent may have found the package through a path that is in no environment variable.
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each), **_NO_THREADS}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                env=env,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # Ctrl-C is for the parent.
                start_new_session=True,
            )

    @property
    def usable(self) -> bool:
        return self.parent == os.getpid() and self.process.poll() is None

    def end(self) -> int:
        """Close the connection, which ends a running child, and return its exit status."""
        self.connection.close()
        return self.process.wait()


_lock = threading.Lock()
_child: _Child | None = None
_forks: _Child | None = None


def isolated(function: Callable[..., T], path: str, *args: object, memory: int | None = None) -> T:
    """Call `function`, which must be importable by name, in the child. `path` is the file that it reads, `memory` the
    number of bytes that it may allocate; where the system enforces no limit, the file's own claims are not bounded.

    Returns what it returns and raises what it raises. Raises StorageError if the child dies. Runs one call at a time.
    """
    global _child
    with _lock:
        if _child is None or not _child.usable:
            _child = _Child(serve)
        try:
            _child.connection.send((function, args, memory))
            succeeded, value = _child.connection.recv()
        except _DIED as error:
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


def spread(function: Callable[[Any], T], inputs: Sequence[Any], processes: int) -> list[T]:
    """Return the result of `function`, which must be importable by name, for each of `inputs`, from so many processes.

    Raises what it raises, once the calls under way are over; StorageError if a process dies.
    """
    free: SimpleQueue[Connection] = SimpleQueue()

    def call(value: object) -> T:
        connection = free.get()
        try:
            connection.send((function, (value,), None))
            succeeded, found = connection.recv()
        except _DIED as error:
            raise StorageError(
                "A process that read the table's metadata died: memory ran out, or a file is damaged",
                hint="add memory, or set reachability.concurrency in lifecycle.yaml to fewer processes, then rerun",
            ) from error
        finally:
            free.put(connection)
        if succeeded:
            return found  # type: ignore[no-any-return]
        raise found

    with ExitStack() as closing, ThreadPoolExecutor(processes) as threads:
        for _ in range(processes):
            free.put(closing.enter_context(_forked()))
        return list(threads.map(call, inputs))


def _forked() -> Connection:
    """Return the connection to a new process, which ends once it is closed."""
    global _forks
    ours, theirs = Pipe()
    with _lock, theirs:
        if _forks is None or not _forks.usable:
            _forks = _Child(fork_workers)
        send_handle(_forks.connection, theirs.fileno(), _forks.process.pid)
    return ours


@atexit.register
def end_children() -> None:
    """End the children of this process; the next call starts new ones. Processes of calls under way end after them."""
    global _child, _forks
    with _lock:
        for each in (_child, _forks):
            if each is not None and each.parent == os.getpid():
                # The child only reads, so a call from another thread loses nothing.
                each.process.kill()
                each.end()
        _child = _forks = None


_SPARE = 1 << 30
"""Address space that allocators reserve and never use, and what the answer takes until it is sent."""


def _limit(memory: int | None) -> None:
    """Let this process allocate so many bytes beside what it has already."""
    most, (_, hard) = resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_AS)
    with suppress(ValueError, OSError):  # macOS has neither the file nor the limit.
        if memory is not None:
            most = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + memory + _SPARE
        resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def serve(descriptor: int) -> None:
    """Answer calls until the parent closes the connection."""
    threading.Thread(target=_end_with, args=(descriptor,), daemon=True).start()
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


def _end_with(descriptor: int) -> None:
    """End this process, also during a call, once the other end of the connection is closed."""
    closed = select.poll()
    closed.register(descriptor, 0)
    closed.poll()
    os._exit(1)


_TASKS = ("artemis_lifecycle.metadata.avro.scan_kernels", "artemis_lifecycle.reachability.index.refresh")
"""What the functions of `spread` load."""


def fork_workers(descriptor: int) -> None:
    """Fork a process for each connection that the parent sends, until the parent ends."""
    load(_TASKS)
    signal.signal(signal.SIGCHLD, _reap)
    connection: Connection = Connection(descriptor)
    with suppress(EOFError):
        while True:
            worker = recv_handle(connection)
            if os.fork() == 0:
                try:
                    serve(worker)
                finally:
                    os._exit(0)
            os.close(worker)


def _reap(*_: object) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue


def load(modules: Iterable[str]) -> None:
    """Import `modules` before forks, which then share them. One that is missing is left to whoever needs it."""
    for name in modules:
        with suppress(ImportError):
            importlib.import_module(name)
    # No collection visits them, nor copies their pages.
    gc.collect()
    gc.freeze()
