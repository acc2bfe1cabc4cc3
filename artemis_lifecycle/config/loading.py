"""Load lifecycle.yaml: strict YAML, the environment, and every problem with its line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from artemis_lifecycle.config.deployment import Catalog, Catalogs, OtherCatalog
from artemis_lifecycle.config.model import SECRET, hidden, hide
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.config.names import spelled
from artemis_lifecycle.errors import ConfigError

C = TypeVar("C", Catalog, OtherCatalog)

_Place = tuple[int | str, ...]
"""The keys that lead to a value, outermost first, as pydantic reports them."""

ENVIRONMENT: dict[str, tuple[tuple[str, ...], ...]] = {
    "ARTEMIS_POSTGRES_URI": (("catalogs", "live", "uri"), ("catalogs", "cold", "uri"), ("operations", "uri")),
    "ARTEMIS_LIVE_URI": (("catalogs", "live", "uri"),),
    "ARTEMIS_COLD_URI": (("catalogs", "cold", "uri"),),
    "ARTEMIS_OPERATIONS_URI": (("operations", "uri"),),
    "ARTEMIS_LIVE_WAREHOUSE": (("catalogs", "live", "warehouse"),),
    "ARTEMIS_COLD_WAREHOUSE": (("catalogs", "cold", "warehouse"),),
    "ARTEMIS_OPERATIONS_ROOT": (("operations", "root"),),
    "ARTEMIS_SPARK_MASTER": (("spark", "master"),),
    "ARTEMIS_HOME": (("home",),),
}
"""Each variable overrides these keys of lifecycle.yaml, a later one those before it."""


def load_config(path: str | Path | None = None, environment: Mapping[str, str] | None = None) -> LifecycleConfig:
    """Read lifecycle.yaml.

    `path` None means `$ARTEMIS_CONFIG`, then `lifecycle.yaml` in the working folder. If that does not exist or is
    empty, all defaults apply and `absent` has the reason; the embedded stack is then not started. Relative paths are
    relative to the file's folder.

    Raises ConfigError, with file, line and key of each problem, if a file that was named is missing, or the file is not
    YAML, has duplicate or unknown keys, values of the wrong type, `${NAME}` of a variable that is not set, or
    `${file:/PATH}` of a file that cannot be read.
    """
    return _valid(_read(path, os.environ if environment is None else environment))


def config_of(values: dict[str, Any], origin: str) -> LifecycleConfig:
    """Return the configuration with these `values`, as if a lifecycle.yaml in the working folder had them. Raises
    ConfigError, with the `origin` of the values."""
    return _valid(_Document(origin, Path.cwd(), values))


def _valid(document: _Document) -> LifecycleConfig:
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
    """Return the valid part of a lifecycle.yaml with problems, for diagnosis only; None if there is none. Raises
    ConfigError for a file that cannot be read."""
    document = _read(path, os.environ)
    _problems(_errors(document.values), document)
    try:
        return document.validated()
    except ValidationError:
        return None


@dataclass(frozen=True)
class _Document:
    """A file that was read: `values`, overridden by the environment; `node`, which has the lines; and the `problems` of
    the YAML itself, which are not in `values`."""

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
        strict = _StrictYaml(env)
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
    """Raise ValueError for nested aliases, which can expand a few lines beyond the memory."""
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
    """Return every problem of a document, by line. Removes invalid values and validates the rest again: pydantic checks
    how sections fit together only when each section is valid."""
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
        return [{**each, "loc": _as_given(values, each["loc"])} for each in error.errors()]
    return [
        {"type": "int_type", "loc": place, "msg": "expected a number", "input": None}
        for place in _booleans_read_as_numbers(values, taken)
    ]


def _as_given(values: Mapping[str, Any], place: _Place) -> _Place:
    """Return where the file has a key of a catalog, which it may have directly under `catalogs`, or in `others`."""
    if place[:1] != ("catalogs",) or place[1:2] not in (("named",), ("others",)) or len(place) < 3:
        return place
    given = values["catalogs"]
    found = next((each for each in ("named", "others") if place[2] in (given.get(each) or {})), None)
    return ("catalogs", *(() if found is None else (found,)), *place[2:])


def _booleans_read_as_numbers(given: Any, taken: Any, place: _Place = ()) -> Iterator[_Place]:
    """Yield where pydantic converted a boolean, such as YAML's `yes` and `off`, to a number."""
    if isinstance(given, bool):
        if not isinstance(taken, bool):
            yield place
    elif isinstance(given, dict | list | tuple) and isinstance(taken, dict | list | tuple):
        for key in given if isinstance(given, dict) else range(len(given)):
            # A key that is missing here has an alias; its value is a string.
            if not isinstance(taken, dict) or key in taken:
                yield from _booleans_read_as_numbers(given[key], taken[key], (*place, key))


def _remove(values: Any, place: _Place) -> _Place:
    """Remove the innermost existing key on the way to `place`; return its place, empty if there is none."""
    if not isinstance(values, dict) or not place or place[0] not in values:
        return ()
    inner = _remove(values[place[0]], place[1:])
    if not inner:
        del values[place[0]]
    return (place[0], *inner)


def _described(error: ErrorDetails, removed: Sequence[_Place], node: yaml.Node | None) -> Iterator[tuple[int, str]]:
    """Yield (line, or 0; key and problem). Skips consequences of keys that were removed as invalid."""
    where, message = [str(part) for part in error["loc"]], str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        message = "unknown key" + (f" {where[-1]!r}" if _printable(where[-1]) == where[-1] else "")
    if error["type"] in ("string_type", "literal_error", "int_type"):
        made = _yaml_reading(_at(node, where)[1], "".join(where[-1:]))
        message = message if made is None else f"{made}: {'quote it' if error['type'] != 'int_type' else message}"
    key = ".".join(map(_printable, where))
    # `LifecycleConfig` reports several problems in one error, a line each.
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

    def placed(catalog: C) -> C:
        if isinstance(catalog, Catalog) and catalog.has_named_warehouse:
            return catalog
        return catalog.model_copy(update={"warehouse": place(catalog.warehouse)})

    catalogs, events = config.catalogs, config.lineage_events
    return {
        "catalogs": Catalogs(
            live=placed(catalogs.live),
            cold=placed(catalogs.cold),
            others={name: placed(other) for name, other in catalogs.others.items()},
            named={name: placed(named) for name, named in catalogs.named.items()},
        ),
        "operations": config.operations.model_copy(update={"root": place(config.operations.root)}),
        "quarantine": config.quarantine.model_copy(update={"root": place(config.quarantine.root)}),
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
    """Return the line of the innermost of `keys` that exists, or 0, and the value of the last one, or None."""
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


# --- YAML, read strictly ---------------------------------------------------------------------------------------------

_TAG = "tag:yaml.org,2002:"
_KINDS = {"int": "the number", "float": "the number", "bool": "the boolean", "timestamp": "the date", "null": ""}
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.*`-]{0,60}")
_REFERENCE = re.compile(r"\$\$|\$\{(?:([A-Za-z_][A-Za-z0-9_]*|file:/[^}]*)\})?")
_DISGUISED = re.compile(r".*:.*|[-+]?0[0-7_]+")
"""Numbers that YAML 1.1 reads in base 60 or 8: 22:00 is 1320, 010 is 8."""


def _printable(key: str) -> str:
    """Return a key for messages; a secret may have been written in the place of a key."""
    return key if _KEY.fullmatch(key) else "…"


def _yaml_reading(node: yaml.Node | None, key: str) -> str | None:
    """Describe how YAML reads an unquoted value that it does not read as a string; None for any other."""
    kind = _KINDS.get(node.tag.removeprefix(_TAG)) if isinstance(node, yaml.ScalarNode) and not node.style else None
    if kind is None or node is None:
        return None
    text = "this value" if SECRET.search(key) else node.value or "an empty value"
    try:
        value = yaml.SafeLoader("").construct_object(node)
    except ValueError:
        value = ""
    return f"YAML reads {text} as {f'{kind} {value}' if kind and text == node.value else kind.split(' ')[-1] or 'null'}"


def _secret(file: Path) -> tuple[str, Sequence[str]]:
    """Return the text of a file without the line break at its end, as orchestrators mount secrets; or what is wrong."""
    try:
        text = file.read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, ValueError) as error:
        return "", [f"{file} cannot be read: {getattr(error, 'strerror', None) or 'it is not a text'}"]
    return text, [] if text else [f"{file} is empty"]


@dataclass
class _StrictYaml:
    """Strict reader: no duplicate keys, no surprising types, `${NAME}` and `${file:/PATH}` expanded. `problems` are
    (line, text)."""

    environment: Mapping[str, str]
    problems: list[tuple[int, str]] = field(default_factory=list)
    _stays: dict[int, bool] = field(default_factory=dict)

    def values(self, node: yaml.Node | None) -> Any:
        """Return the values of the document `node`."""
        if node is None:
            return None
        self._check(node, ())
        return yaml.SafeLoader("").construct_document(node)

    def _check(self, node: yaml.Node, path: tuple[str, ...]) -> bool:
        """Return True if the node is valid. An alias is the same node, which is expanded once."""
        if id(node) not in self._stays:
            self._stays[id(node)] = True
            if isinstance(node, yaml.MappingNode):
                self._check_keys(node, path)
            elif isinstance(node, yaml.SequenceNode):
                node.value = [each for each in node.value if self._check(each, path)]
            else:
                self._stays[id(node)] = self._check_value(node, path)
        return self._stays[id(node)]

    def _check_keys(self, node: yaml.MappingNode, path: tuple[str, ...]) -> None:
        first: dict[str, yaml.Node] = {}
        twice, kept = set(), []
        for key, value in node.value:
            text = str(key.value)
            if key.tag not in (f"{_TAG}str", f"{_TAG}merge"):
                self._found(
                    key, path, f"{_yaml_reading(key, '') or 'a key is not a text'}, in the place of a key: quote it"
                )
                continue
            if "${" in text:
                self._found(key, path, "${…} is expanded in values, and not in keys")
                continue
            # Two spellings of a table name are one key.
            name = spelled(text) if path == ("tables",) else text
            before = first.setdefault(name, key)
            if before is key:
                kept.append((name, key, value))
                continue
            twice.add(name)
            again = "stands twice" if text == before.value else f"is another spelling of {_printable(before.value)}"
            lines = f"lines {before.start_mark.line + 1} and {key.start_mark.line + 1}"
            self._found(key, (*path, _printable(text)), f"{again} ({lines}): keep one of them")
        node.value = [
            (key, value)
            for name, key, value in kept
            if name not in twice and self._check(value, (*path, _printable(str(key.value))))
        ]

    def _check_value(self, node: yaml.Node, path: tuple[str, ...]) -> bool:
        if node.tag == f"{_TAG}str":
            return self._expand(node, path)
        if node.tag in (f"{_TAG}int", f"{_TAG}float") and _DISGUISED.fullmatch(node.value):
            made = _yaml_reading(node, path[-1] if path else "")
            if made is not None:
                self._found(node, path, f"{made}: quote it")
                return False
        return True

    def _expand(self, node: yaml.Node, path: tuple[str, ...]) -> bool:
        wrong: list[str] = []

        def replaced(match: re.Match[str]) -> str:
            if match[0] == "$$":
                return "$"
            name = match[1]
            if name is None:
                wrong.append(
                    "${ begins the name of an environment variable, as in ${NAME}, or of a file, as in ${file:/PATH}; "
                    "write $${ for the text ${"
                )
                return ""
            if name.startswith("file:"):
                value, problem = _secret(Path(name.removeprefix("file:")))
                wrong.extend(problem)
            elif not (value := self.environment.get(name, "")):
                wrong.append(f"the environment variable {name} is {'empty' if name in self.environment else 'not set'}")
            if len(value) > 2:
                hide(value, f"${{{name}}}")
            return value

        node.value = _REFERENCE.sub(replaced, node.value)
        for each in dict.fromkeys(wrong):
            self._found(node, path, each)
        return not wrong

    def _found(self, node: yaml.Node, path: tuple[str, ...], what: str) -> None:
        self.problems.append((node.start_mark.line + 1, f"{'.'.join(path)}{': ' if path else ''}{what}"))
