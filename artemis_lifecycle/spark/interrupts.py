"""Raise SIGTERM as an exception in the main thread, like Ctrl-C, so that files with secrets are removed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


@contextmanager
def interruptible(*, then_end: bool = False) -> Iterator[None]:
    """Raise Terminated in the block at SIGTERM, unless the process handles that itself. `then_end`: after the block has
    cleaned up, the signal ends the process as usual."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(*_: object) -> None:
        raise Terminated

    def again(lost: sys.UnraisableHookArgs) -> None:
        # Where Python cannot raise, as in hooks of a fork, it drops the exception.
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            before(lost)
            return
        sent = signal.SIGTERM if lost.exc_type is Terminated else signal.SIGINT
        threading.Timer(0.1, os.kill, (os.getpid(), sent)).start()

    before, sys.unraisablehook = sys.unraisablehook, again
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    except Terminated:
        if not then_end:
            raise
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
    finally:
        sys.unraisablehook = before
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
