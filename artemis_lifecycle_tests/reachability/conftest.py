"""Folders for examples of hypothesis: a fixture lives as long as the test, and each example needs one of its own."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from artemis_lifecycle_tests.reachability.metadata_tables import delete_folder

Folders = Callable[[], AbstractContextManager[str]]
_MEMORY = Path("/dev/shm")


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Folders]:
    """`with folders() as folder`: a new empty folder, gone afterwards. In memory where the machine has such a disk."""
    numbers = itertools.count()
    with tempfile.TemporaryDirectory(
        prefix="artemis-tests-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else tmp_path
    ) as base:

        @contextmanager
        def one() -> Iterator[str]:
            folder = f"{base}/{next(numbers)}"
            os.mkdir(folder)
            try:
                yield folder
            finally:
                delete_folder(folder)

        yield one
