"""YAML, read strictly: each key once, nothing taken for something else, and `${NAME}` from the environment in values.

Belongs here: what can be said of the text alone, with its lines. Does not belong: which keys there are (`loading`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from artemis_lifecycle.config.model import SECRET, hide
from artemis_lifecycle.config.names import spelled

_TAG = "tag:yaml.org,2002:"
_KINDS = {"int": "the number", "float": "the number", "bool": "the boolean", "timestamp": "the date", "null": ""}
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.*`-]{0,60}")
_REFERENCE = re.compile(r"\$\$|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)\})?")
_DISGUISED = re.compile(r".*:.*|[-+]?0[0-7_]+")
"""Numbers that YAML 1.1 reads in base 60 or 8: 22:00 is 1320, 010 is 8."""


def shown(key: str) -> str:
    """A key as it may be shown: what stands in the place of a key may be what belongs behind it."""
    return key if _KEY.fullmatch(key) else "…"


def made_of(node: yaml.Node | None, key: str) -> str | None:
    """Say what YAML made of a value without quotes that it did not take for a text; None for any other."""
    kind = _KINDS.get(node.tag.removeprefix(_TAG)) if isinstance(node, yaml.ScalarNode) and not node.style else None
    if kind is None or node is None:
        return None
    text = "this value" if SECRET.search(key) else node.value or "an empty value"
    try:
        value = yaml.SafeLoader("").construct_object(node)
    except ValueError:
        value = ""
    return f"YAML reads {text} as {f'{kind} {value}' if kind and text == node.value else kind.split(' ')[-1] or 'null'}"


@dataclass
class StrictYaml:
    """The nodes of a document: `problems`, as (line, what), each removed from the nodes, which are then expanded."""

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
        """Return whether the node may stay. An alias is the node that it names, which is expanded once."""
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
                self._found(key, path, f"{made_of(key, '') or 'a key is not a text'}, in the place of a key: quote it")
                continue
            if "${" in text:
                self._found(key, path, "${…} is expanded in values, and not in keys")
                continue
            # A table has one name; two spellings of it are one key.
            name = spelled(text) if path == ("tables",) else text
            before = first.setdefault(name, key)
            if before is key:
                kept.append((name, key, value))
                continue
            twice.add(name)
            again = "stands twice" if text == before.value else f"is another spelling of {shown(before.value)}"
            lines = f"lines {before.start_mark.line + 1} and {key.start_mark.line + 1}"
            self._found(key, (*path, shown(text)), f"{again} ({lines}): keep one of them")
        node.value = [
            (key, value)
            for name, key, value in kept
            if name not in twice and self._check(value, (*path, shown(str(key.value))))
        ]

    def _check_value(self, node: yaml.Node, path: tuple[str, ...]) -> bool:
        if node.tag == f"{_TAG}str":
            return self._expand(node, path)
        if node.tag in (f"{_TAG}int", f"{_TAG}float") and _DISGUISED.fullmatch(node.value):
            made = made_of(node, path[-1] if path else "")
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
            value = self.environment.get(name, "") if name else ""
            if name is None:
                wrong.append("${ begins the name of an environment variable, as in ${NAME}; write $${ for the text ${")
            elif not value:
                wrong.append(f"the environment variable {name} is {'empty' if name in self.environment else 'not set'}")
            elif len(value) > 2:
                hide(value, f"${{{name}}}")
            return value

        node.value = _REFERENCE.sub(replaced, node.value)
        for each in dict.fromkeys(wrong):
            self._found(node, path, each)
        return not wrong

    def _found(self, node: yaml.Node, path: tuple[str, ...], what: str) -> None:
        self.problems.append((node.start_mark.line + 1, f"{'.'.join(path)}{': ' if path else ''}{what}"))
