"""Splitting the keys of a prefix into pieces that can be listed at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

_QUESTIONS, _MOST_QUESTIONS = 8, 400
"""Requests for each piece that a prefix is wanted in, and for all."""


class Stems:
    """Beginnings of keys that lie far enough apart to list what is between them at once. Each is found by asking for
    the first key behind a place: how many keys have one is unknown."""

    def __init__(self, first: Callable[[str], str | None], folder: str) -> None:
        self._first = first
        self._folder = folder
        self._asked = 0

    def found(self, wanted: int) -> list[str]:
        """Ascending; every key lies behind the first of them, or is it."""
        # Each with its first key; without one it has no more to divide.
        stems: list[tuple[str, str | None]] = [(self._folder, self._ask(self._folder))]
        most = min(wanted * _QUESTIONS, _MOST_QUESTIONS)
        while len(stems) < wanted and any(key is not None for _, key in stems) and self._asked < most:
            longer: list[tuple[str, str | None]] = []
            for stem, key in stems:
                if key is None or self._asked >= most:
                    longer.append((stem, key))
                else:
                    longer += list(self._longer(stem, key)) or [(stem, None)]
            stems = longer
        return [stem for stem, _ in stems]

    def _longer(self, stem: str, first: str) -> Iterator[tuple[str, str]]:
        """Where the keys that begin with `stem` part: the stems there, each with its first key, of which the very first
        is `first`. None where there is one key."""
        shared = first[: self._shared(stem, first)]
        key: str | None = first
        while key is not None and key.startswith(stem):
            if len(key) == len(shared):  # The stem itself is a key: it lies before the first of the longer ones.
                key = self._ask(key)
                continue
            one = key[: len(shared) + 1]
            yield one, key
            key = self._ask_behind(one)

    def _shared(self, stem: str, key: str) -> int:
        """How many characters all keys that begin with `stem` begin with, of which `key` is the first."""

        def all_begin(length: int) -> bool:
            following = self._ask_behind(key[:length])
            return following is None or not following.startswith(stem)

        least, most = len(stem), len(key)
        # They part at once more often than not.
        if least < most and not all_begin(least + 1):
            return least
        while least < most:
            middle = (least + most + 1) // 2
            least, most = (middle, most) if all_begin(middle) else (least, middle - 1)
        return least

    def _ask_behind(self, stem: str) -> str | None:
        behind = _behind(stem)
        return None if behind is None else self._ask(behind)

    def _ask(self, behind: str) -> str | None:
        self._asked += 1
        return self._first(behind)


def _behind(stem: str) -> str | None:
    """A text behind all texts that begin with `stem`; None where Unicode ends."""
    code = ord(stem[-1]) + 1
    if 0xD800 <= code <= 0xDFFF:  # No text has these.
        code = 0xE000
    return None if code > 0x10FFFF else stem[:-1] + chr(code)
