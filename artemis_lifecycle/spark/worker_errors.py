"""Errors that cross from Spark's Python workers to the driver. Belongs here: distinguishing them from Spark's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from artemis_lifecycle import errors
from artemis_lifecycle.spark.executors import from_executors
from artemis_lifecycle.spark.java_errors import as_ours

# A worker's exception reaches the driver as text: the last line of its traceback names class and message.
_RAISED = re.compile(r"artemis_lifecycle\.errors\.(\w+): (.*?)(?:\n\s*\n|\n\tat |\n\s+at |\Z)", re.DOTALL)


@contextmanager
def worker_errors() -> Iterator[None]:
    """Run Spark actions; a LifecycleError raised on an executor comes out as that LifecycleError, and what the catalog,
    the store or another writer did to the JVM as `java_errors` has it.

    Every action whose workers read a table's files belongs inside, so that a caller never has to read a Spark trace.
    """
    try:
        yield
    except errors.LifecycleError:
        raise
    except Exception as error:
        raised = _RAISED.findall(str(error))
        if not raised:
            known = from_executors(str(error)) or as_ours(error)
            if known is None:
                raise
            raise known from error
        name, message = raised[-1]
        kind = getattr(errors, name, errors.LifecycleError)
        raise _restored(kind, message.strip()) from error


def _restored(kind: type[errors.LifecycleError], message: str) -> errors.LifecycleError:
    what, _, do = message.partition(" Next: ")
    what, _, untouched = what.partition(" Left untouched: ")
    table = path = None
    if match := re.search(r" \[path (.*?)\](?=[. ]|$)", what):
        path = match[1]
        what = what.replace(match[0], "")
    if match := re.search(r" \[table (.*?)\](?=[. ]|$)", what):
        table = match[1]
        what = what.replace(match[0], "")
    return kind(what, table=table, path=path, untouched=untouched.rstrip(".") or None, hint=do.rstrip(".") or None)
