"""The base of all configuration models: unknown keys are errors, and secrets are never shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict

from artemis_lifecycle.config.schemes import AZURE_SCHEMES

SECRET = re.compile(
    r"password|secret|token|(access|account|shared|cryption)[-_.]?key|connection[-_.]?string|credential|sessionkey|webhook",
    re.IGNORECASE,
)
"""Matches the names of settings whose values are secret."""

_HIDDEN = "***"
_FROM_ENVIRONMENT: dict[str, str] = {}


def hide(value: str, name: str) -> None:
    """From now on, show `name` instead of `value`, which came from the environment."""
    _FROM_ENVIRONMENT[value] = name


def hidden(text: str) -> str:
    """Return `text` with values from the environment replaced by their names."""
    # Longest first: one can contain another.
    for value in sorted(_FROM_ENVIRONMENT, key=len, reverse=True):
        text = text.replace(value, _FROM_ENVIRONMENT[value])
    return text


def masked(name: str, value: Any) -> Any:
    """Return a setting's value without credentials."""
    if isinstance(value, Mapping):
        return {key: masked(str(key), each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(masked(name, each) for each in value)
    if isinstance(value, Path):
        return Path(hidden(str(value)))
    if not isinstance(value, str):
        return value
    if SECRET.search(name):
        return _HIDDEN
    scheme, between, rest = value.partition("://")
    address, query, _ = rest.partition("?")
    # An Azure path has its container there.
    if between and "@" in address and scheme.lower() not in AZURE_SCHEMES:
        # libpq also accepts a password in the query.
        return hidden(f"{scheme}://{_HIDDEN}@{address.rpartition('@')[2]}{f'?{_HIDDEN}' if query else ''}")
    return hidden(value)


def _address(value: str | None) -> str | None:
    """Reject an address that would be parsed wrongly; the error does not show it."""
    if value is not None and "://" in value:
        login, _, _ = value.partition("://")[2].partition("?")[0].rpartition("@")
        if "@" in login:
            raise ValueError("the user or the password of the address has an @: write it as %40")
        if login.count(":") > 1:
            raise ValueError("the user or the password of the address has a colon: write it as %3A")
        if "/" in login:
            raise ValueError("the user or the password of the address has a slash: write it as %2F")
    # SQLAlchemy 2.1 reads a bare postgresql:// as a driver that is not installed here.
    return value and re.sub("^postgres(ql)?://", "postgresql+psycopg2://", value)


Address = Annotated[str | None, AfterValidator(_address)]
Root = Annotated[str | None, AfterValidator(lambda value: value.rstrip("/") if value else value)]


class Model(BaseModel):
    # Inputs can have passwords, and pydantic shows them in errors.
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, hide_input_in_errors=True)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return [(name, masked(name or "", value)) for name, value in super().__repr_args__()]
