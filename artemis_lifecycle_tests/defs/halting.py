"""What a code server loads in tests: the definitions, whose runs stand still at the crash point ARTEMIS_TEST_HALTS_AT
after a note in the file ARTEMIS_TEST_NOTE."""

from __future__ import annotations

import os
import time
from pathlib import Path

from artemis_lifecycle.definitions import defs
from artemis_lifecycle.operations import crash_points

__all__ = ["defs"]


def _halt(point: str) -> None:
    if point == os.environ["ARTEMIS_TEST_HALTS_AT"]:
        Path(os.environ["ARTEMIS_TEST_NOTE"]).write_text(point)
        time.sleep(600)


# For as long as the process lives.
_HALTS = crash_points.installed(_halt)
_HALTS.__enter__()
