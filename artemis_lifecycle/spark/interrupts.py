"""SIGTERM as an exception in the main thread, as Ctrl-C is, so that files with secrets go with what made them."""

from __future__ import annotations

import signal
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

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    except Terminated:
        if not then_end:
            raise
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
