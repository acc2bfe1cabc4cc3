"""Loading lifecycle.yaml: the file, the environment, and every problem with its line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from artemis_lifecycle.config.deployment import Catalogs
from artemis_lifecycle.config.model import hidden
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.config.strict_yaml import StrictYaml, made_of, shown
from artemis_lifecycle.errors import ConfigError

_Place = tuple[int | str, ...]
"""Where pydantic found something: the keys, from the outside in."""

ENVIRONMENT: dict[str, tuple[tuple[str, ...], ...]] = {
    "ARTEMIS_POSTGRES_URI": (
        ("catalogs", "live", "uri"),
        ("catalogs", "cold", "uri"),
        ("operations", "uri"),
    ),
    "ARTEMIS_LIVE_WAREHOUSE": (("catalogs", "live", "warehouse"),),
    "ARTEMIS_COLD_WAREHOUSE": (("catalogs", "cold", "warehouse"),),
    "ARTEMIS_OPERATIONS_ROOT": (("operations", "root"),),
    "ARTEMIS_SPARK_MASTER": (("spark", "master"),),
    "ARTEMIS_HOME": (("home",),),
}
"""Each variable beats the keys of lifecycle.yaml beside it."""


def load_config(path: str | Path | None = None, environment: Mapping[str, str] | None = None) -> LifecycleConfig:
    """Read lifecycle.yaml.

    `path` None means `$ARTEMIS_CONFIG`, then `lifecycle.yaml` in the working folder. Where that does not exist, or is
    empty, all defaults hold, and `absent` says so: no embedded stack is started for it. Relative paths in the file are
    taken from the file's own folder.

    Raises ConfigError, naming file, line and key of each problem, when a file that was named is missing, or the file is
    not YAML, has a key twice, unknown keys, values of the wrong kind, or `${NAME}` of a variable that is not set.
    """
    document = _read(path, os.environ if environment is None else environment)
    problems = _problems(_errors(document.values), document)
    if not problems:
        return document.validated()
    count = f" has {len(problems)} problems," if problems[1:] else ""
    raise ConfigError(
        f"{document.name}{count} {'; '.join(problems)}",
        problems=problems,
        hint=f"correct {'each' if count else 'it'}; docs/configuration.md has the keys and their defaults",
    )


def load_what_is_right(path: str | Path | None = None) -> LifecycleConfig | None:
    """What a lifecycle.yaml with problems says without them, to report on the rest; nothing may work by it. None where
    that is not a configuration either. Raises ConfigError for a file that cannot be read."""
    document = _read(path, os.environ)
    _problems(_errors(document.values), document)
    try:
        return document.validated()
    except ValidationError:
        return None


@dataclass(frozen=True)
class _Document:
    """A file that was read: `values` with those of the environment laid over them, the lines in `node`, and the
    `problems` of the text itself, which `values` does without."""

    name: str
    folder: Path
    values: dict[str, Any]
    node: yaml.Node | None = None
    absent: str | None = None
    problems: tuple[tuple[int, str], ...] = ()

    def validated(self) -> LifecycleConfig:
        config = LifecycleConfig.model_validate(self.values)
        home = (self.folder / config.home).resolve()
        config = config.model_copy(update={"home": home, **_absolute(config, self.folder)})
        config._absent = None if "home" in self.values else self.absent
        return config


def _read(path: str | Path | None, env: Mapping[str, str]) -> _Document:
    if path is None:
        path = env.get("ARTEMIS_CONFIG")
    file = Path(path or "lifecycle.yaml").absolute()
    if path is None and not file.exists():
        return _Document("The environment", file.parent, _with_environment({}, env), absent=f"There is no {file}")
    try:
        text = file.read_text(encoding="utf-8")
        if len(text) > _MOST_TEXT:
            raise ValueError(f"it has {len(text):,} characters")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        strict = StrictYaml(env)
        raw = strict.values(node)
        _require_few(raw)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"The configuration cannot be read: {error}",
            path=str(file),
            hint="name a readable lifecycle.yaml with --config or ARTEMIS_CONFIG; docs/configuration.md has its keys",
        ) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark else ""
        raise ConfigError(
            f"{file}{line} is not YAML: {getattr(error, 'problem', error)}", hint="fix that line"
        ) from error
    if raw is not None and not isinstance(raw, dict):
        raise ConfigError(f"{file} line 1: expected a mapping of sections", hint="see docs/configuration.md")
    absent = None if raw else f"{file} is empty"
    return _Document(
        str(file), file.resolve().parent, _with_environment(raw or {}, env), node, absent, tuple(strict.problems)
    )


_MOST_TEXT = 4 << 20
_MOST_VALUES = 1_000_000


def _require_few(raw: object) -> None:
    """Raise ValueError for aliases in aliases, which a few lines can make more of than memory holds."""
    seen, left = 0, [raw]
    while left:
        value = left.pop()
        seen += 1
        if seen + len(left) > _MOST_VALUES:
            raise ValueError(f"it has more than {_MOST_VALUES:,} values, or names itself")
        if isinstance(value, Mapping):
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)


def _with_environment(raw: dict[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = _deep_copy(raw)
    for variable, places in ENVIRONMENT.items():
        if env.get(variable):
            for place in places:
                _put(values, place, env[variable])
    return values


def _problems(errors: list[ErrorDetails], document: _Document) -> tuple[str, ...]:
    """Every problem of a document, by line. Removes what is wrong from its values and validates the rest again:
    pydantic checks how parts fit together only once each part is right."""
    found: set[tuple[int, str]] = set(document.problems)
    removed: list[_Place] = []
    while errors:
        before = tuple(removed)
        for each in errors:
            found.update(_described(each, before, document.node))
            if not any(each["loc"][: len(place)] == place for place in removed):
                removed += filter(None, [_remove(document.values, each["loc"])])
        errors = [] if len(removed) == len(before) else _errors(document.values)
    return tuple(f"line {line}: {hidden(what)}" if line else hidden(what) for line, what in sorted(found))


def _errors(values: dict[str, Any]) -> list[ErrorDetails]:
    try:
        taken = LifecycleConfig.model_validate(values).model_dump(by_alias=True)
    except ValidationError as error:
        return error.errors()
    return [
        {"type": "int_type", "loc": place, "msg": "expected a number", "input": None}
        for place in _taken_for_numbers(values, taken)
    ]


def _taken_for_numbers(given: Any, taken: Any, place: _Place = ()) -> Iterator[_Place]:
    """Where pydantic made a number of a boolean, which `yes` and `off` are in YAML."""
    if isinstance(given, bool):
        if not isinstance(taken, bool):
            yield place
    elif isinstance(given, dict | list | tuple) and isinstance(taken, dict | list | tuple):
        for key in given if isinstance(given, dict) else range(len(given)):
            # A key that stands under its name in Python is that of a text.
            if not isinstance(taken, dict) or key in taken:
                yield from _taken_for_numbers(given[key], taken[key], (*place, key))


def _remove(values: Any, place: _Place) -> _Place:
    """Remove the innermost key on the way to `place` that `values` has; its own place, empty if it has none."""
    if not isinstance(values, dict) or not place or place[0] not in values:
        return ()
    inner = _remove(values[place[0]], place[1:])
    if not inner:
        del values[place[0]]
    return (place[0], *inner)


def _described(error: ErrorDetails, removed: Sequence[_Place], node: yaml.Node | None) -> Iterator[tuple[int, str]]:
    """(Line, or 0; key and what is wrong with it). Nothing about a key that was removed as wrong itself."""
    where, message = [str(part) for part in error["loc"]], str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        message = "unknown key" + (f" {where[-1]!r}" if shown(where[-1]) == where[-1] else "")
    if error["type"] in ("string_type", "literal_error", "int_type"):
        made = made_of(_at(node, where)[1], "".join(where[-1:]))
        message = message if made is None else f"{made}: {'quote it' if error['type'] != 'int_type' else message}"
    key = ".".join(map(shown, where))
    # Of the whole there may be several, as `LifecycleConfig` writes them.
    for said in message.splitlines():
        if not any(re.search(rf"\b{re.escape(str(gone[-1]))}\b", said) for gone in removed):
            table, _, named = said.partition(": ") if said.startswith("tables.") else ("", "", said)
            keys = [*where, *(table.split(".", 1) if table else ()), *named.split(" ", 1)[0].split(".")]
            yield _at(node, keys)[0], f"{key + ': ' if key else ''}{said}"


def _absolute(config: LifecycleConfig, folder: Path) -> dict[str, Any]:
    def place(root: str | None) -> str | None:
        if root is None or "://" in root or root.startswith("file:"):
            return root
        # Not as_uri(): a location is the string itself, and %20 would name another folder.
        return f"file://{(folder / root).resolve()}"

    live, cold, events = config.catalogs.live, config.catalogs.cold, config.lineage_events
    return {
        "catalogs": Catalogs(
            live=live.model_copy(update={"warehouse": place(live.warehouse)}),
            cold=cold.model_copy(update={"warehouse": place(cold.warehouse)}),
            others={
                name: other.model_copy(update={"warehouse": place(other.warehouse)})
                for name, other in config.catalogs.others.items()
            },
        ),
        "operations": config.operations.model_copy(update={"root": place(config.operations.root)}),
        "lineage_events": events.model_copy(update={"file": None if events.file is None else folder / events.file}),
    }


def _deep_copy(value: Any) -> Any:
    return {key: _deep_copy(item) for key, item in value.items()} if isinstance(value, dict) else value


def _put(values: dict[str, Any], key: tuple[str, ...], value: str) -> None:
    for part in key[:-1]:
        section = values.setdefault(part, {})
        if not isinstance(section, dict):
            return
        values = section
    values[key[-1]] = value
    if key[0] == "catalogs":
        values.setdefault("name", key[1])


def _at(node: yaml.Node | None, keys: list[str]) -> tuple[int, yaml.Node | None]:
    """(The line of the innermost of `keys` that is there, or 0; the value of the last one, or None.)"""
    line = 0
    for key in keys:
        inner: yaml.Node | None = None
        if isinstance(node, yaml.MappingNode):
            for key_node, value_node in node.value:
                if key_node.value == key:
                    line, inner = key_node.start_mark.line + 1, value_node
        elif isinstance(node, yaml.SequenceNode) and key.isdecimal() and int(key) < len(node.value):
            inner = node.value[int(key)]
            line = inner.start_mark.line + 1
        node = inner
        if node is None:
            break
    return line, node
