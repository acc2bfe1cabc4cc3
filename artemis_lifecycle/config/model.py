"""What all models of the configuration share: they refuse unknown keys, and never show a secret."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict

SECRET = re.compile(r"password|secret|token|access[-_.]?key|credential|sessionkey|webhook", re.IGNORECASE)
"""Words in the name of a setting whose value is secret."""

_HIDDEN = "***"
_FROM_ENVIRONMENT: dict[str, str] = {}


def hide(value: str, name: str) -> None:
    """Show `name` in the place of `value`, which came from the environment, from now on."""
    _FROM_ENVIRONMENT[value] = name


def hidden(text: str) -> str:
    """Return a text with the names of what came from the environment in the place of the values."""
    # The longest first: one may be a part of another.
    for value in sorted(_FROM_ENVIRONMENT, key=len, reverse=True):
        text = text.replace(value, _FROM_ENVIRONMENT[value])
    return text


def masked(name: str, value: Any) -> Any:
    """A setting's value as it may be shown: without what it logs in with."""
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
    address, asked, _ = rest.partition("?")
    if between and "@" in address:
        # libpq takes a password in the query, too.
        return hidden(f"{scheme}://{_HIDDEN}@{address.rpartition('@')[2]}{f'?{_HIDDEN}' if asked else ''}")
    return hidden(value)


def _address(value: str | None) -> str | None:
    """Refuse an address whose parts would be taken for others, without saying it."""
    if value is not None and "://" in value:
        login, _, _ = value.partition("://")[2].partition("?")[0].rpartition("@")
        if "@" in login:
            raise ValueError("the user or the password of the address has an @: write it as %40")
        if login.count(":") > 1:
            raise ValueError("the user or the password of the address has a colon: write it as %3A")
        if "/" in login:
            raise ValueError("the user or the password of the address has a slash: write it as %2F")
    return value


Address = Annotated[str | None, AfterValidator(_address)]
Root = Annotated[str | None, AfterValidator(lambda value: value.rstrip("/") if value else value)]


class Model(BaseModel):
    # Inputs have passwords in them, and an error is shown with what led to it.
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, hide_input_in_errors=True)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return [(name, masked(name or "", value)) for name, value in super().__repr_args__()]
