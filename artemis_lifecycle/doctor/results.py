"""What a check returns, and how an error becomes one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sqlalchemy.exc import DBAPIError

from artemis_lifecycle.errors import LifecycleError

Status = Literal["ok", "warning", "failed", "skipped"]


@dataclass(frozen=True)
class Check:
    """One thing that was checked: what was found, and how to fix it where it is wrong."""

    name: str
    status: Status
    detail: str
    fix: str = ""


def checked(name: str, check: Callable[[], Check]) -> Check:
    """The result of `check`; its error as one, so that no check keeps the others from being made."""
    try:
        return check()
    except LifecycleError as error:
        where = f" [{error.path}]" if error.path else ""
        return Check(name, "failed", f"{error.what.rstrip('.')}{where}", error.hint or "")
    except DBAPIError as error:
        return Check(name, "failed", str(error.orig).partition("\n")[0], "check the rights of the role")
    except Exception as error:
        # What it says may repeat what it was given.
        return Check(name, "failed", type(error).__name__, "run the step that needs it, which says more")
