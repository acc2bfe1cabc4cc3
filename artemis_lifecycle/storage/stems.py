"""Splitting the keys of a prefix into pieces that can be listed in parallel. Pure: who uses it asks the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator

_QUESTIONS, _MOST_QUESTIONS = 8, 400
"""Maximum requests per piece, and in total."""


class Stems:
    """Key prefixes that are far enough apart to list the keys between them in parallel. Each is found by requesting the
    first key after a position; the number of keys in each is unknown."""

    def __init__(self, first: Callable[[str], str | None], folder: str) -> None:
        self._first = first
        self._folder = folder
        self._asked = 0

    def found(self, wanted: int) -> list[str]:
        """Return the stems in ascending order. Every key is equal to or after the first of them."""
        # Each with its first key; without one, there is nothing to divide.
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
        """Yield the stems at which the keys beginning with `stem` diverge, each with its first key; `first` is the very
        first one. Nothing if there is only one key."""
        shared = first[: self._shared(stem, first)]
        key: str | None = first
        while key is not None and key.startswith(stem):
            if len(key) == len(shared):  # The stem itself is a key: it comes before the longer ones.
                key = self._ask(key)
                continue
            one = key[: len(shared) + 1]
            yield one, key
            key = self._ask_behind(one)

    def _shared(self, stem: str, key: str) -> int:
        """Return how many leading characters all keys beginning with `stem` share; `key` is the first of them."""

        def all_begin(length: int) -> bool:
            following = self._ask_behind(key[:length])
            return following is None or not following.startswith(stem)

        least, most = len(stem), len(key)
        # Usually they diverge at once.
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
    """Return a text after all texts that begin with `stem`; None at the end of Unicode."""
    code = ord(stem[-1]) + 1
    if 0xD800 <= code <= 0xDFFF:  # Surrogates are not valid in text.
        code = 0xE000
    return None if code > 0x10FFFF else stem[:-1] + chr(code)
