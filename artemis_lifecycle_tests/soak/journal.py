"""What a process says of itself while others may kill it: lines of JSON, each on the disk before it goes on."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


class Journal:
    """Appends to a file. Several incarnations of a process write to one, one after the other."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, what: str, **details: Any) -> None:
        """The line is on the disk on return. It begins with a newline: the one before may have been cut by a kill."""
        line = json.dumps({"at": round(time.time(), 3), "what": what, **details}, default=str)
        os.write(self._handle, f"\n{line}".encode())
        os.fsync(self._handle)

    def close(self) -> None:
        os.close(self._handle)


def read(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a journal; nothing where there is none yet."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue  # Empty, or cut.
    return found
