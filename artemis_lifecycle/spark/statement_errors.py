"""Errors that Spark finds in a user's statement. Belongs here: distinguishing them from other errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from artemis_lifecycle.errors import BadInput

_THE_STATEMENTS = ("0A", "21", "22", "42")
"""Classes of SQLSTATE: not supported, cardinality, data, syntax or names. Source: ISO/IEC 9075-2, "SQLSTATE"."""

_ROWS = "INCOMPATIBLE_DATA_FOR_TABLE"
"""Spark's condition for rows that do not fit a table; its SQLSTATE, of class KD, has failures of the system, too."""


@contextmanager
def statement_errors() -> Iterator[None]:
    """Run a statement, or collect its rows; what Spark finds wrong with it comes out as BadInput, in one line.

    Spark's own report, a JSON document with the trace of the JVM, is not written to the error output meanwhile.
    """
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    report = PySparkLogger.getLogger("SQLQueryContextLogger")
    disabled, report.disabled = report.disabled, True
    try:
        yield
    except PySparkException as error:
        of_rows = (error.getCondition() or "").startswith(_ROWS)
        if not of_rows and not (error.getSqlState() or "").startswith(_THE_STATEMENTS):
            raise
        said = str(error).strip().partition("\n")[0].rstrip(";")
        raise BadInput(f"Spark refuses the statement: {said}", hint="fix the statement") from error
    finally:
        report.disabled = disabled
