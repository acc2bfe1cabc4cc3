"""SIGTERM as an exception in the main thread, as Ctrl-C is, so that files with secrets go with what made them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Terminated(KeyboardInterrupt):
    """The process got SIGTERM."""


@contextmanager
def interruptible(*, then_end: bool = False) -> Iterator[None]:
    """Raise Terminated in the block at SIGTERM, unless the process handles that itself. `then_end`: after the block has
    cleaned up, the process ends by the signal as if it had not been caught."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(*_: object) -> None:
        raise Terminated

    def again(lost: sys.UnraisableHookArgs) -> None:
        # Where Python cannot raise, as in the hooks of a fork, it drops the exception.
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
