"""Errors of the project as Dagster shows them: one clear text, its parts as metadata, whether trying again may help."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from dagster import Backoff, Failure, Jitter, MetadataValue, RetryPolicy

from artemis_lifecycle.errors import (
    CommitConflict,
    CopyMismatch,
    LifecycleError,
    MissingFile,
    OperationsUnavailable,
    StorageError,
)

RETRIES = RetryPolicy(max_retries=2, delay=15, backoff=Backoff.EXPONENTIAL, jitter=Jitter.PLUS_MINUS)
"""For what may pass by itself in seconds. Every step resumes, so a second attempt is never a second effect."""

_MAY_PASS = (StorageError, OperationsUnavailable, CommitConflict)
_WILL_NOT_PASS = (MissingFile, CopyMismatch)


class Watch:
    """How long a step has taken so far."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the step began, in hundredths."""
        return round(time.monotonic() - self._began, 2)


@contextmanager
def told_to_dagster() -> Iterator[Watch]:
    """Time the block, and turn a LifecycleError inside it into a Failure that says the same.

    A table whose lease is taken fails at once, to be tried later: waiting would keep a slot from other tables.
    """
    try:
        yield Watch()
    except LifecycleError as error:
        parts = {"table": error.table, "path": error.path, "left_untouched": error.untouched, "next": error.do}
        raise Failure(
            description=str(error),
            metadata={
                "error": MetadataValue.text(type(error).__name__),
                **{key: MetadataValue.text(value) for key, value in parts.items() if value},
            },
            allow_retries=isinstance(error, _MAY_PASS) and not isinstance(error, _WILL_NOT_PASS),
        ) from error
