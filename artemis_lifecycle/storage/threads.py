"""Work in threads of this process that waits for a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def threaded(work: Callable[[Any], T], items: Sequence[Any], threads: int) -> Iterator[T]:
    """Yield `work` of each item, in order. At most a few results per thread are held until the caller takes them."""
    threads = min(threads, len(items))
    if threads <= 1:
        yield from map(work, items)
        return
    window = threads * 4
    with ThreadPoolExecutor(threads) as pool:
        waiting = [pool.submit(work, item) for item in items[:window]]
        upcoming = iter(items[window:])
        try:
            while waiting:
                done = waiting.pop(0).result()
                waiting += [pool.submit(work, item) for item in [next(upcoming, None)] if item is not None]
                yield done
        finally:
            for future in waiting:
                future.cancel()
