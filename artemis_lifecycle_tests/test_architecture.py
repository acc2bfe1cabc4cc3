"""Whatever is private to a module stays in it, and `Lifecycle` is composed of services. Import rules are in
pyproject.toml."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import artemis_lifecycle
from artemis_lifecycle.api import Lifecycle

PACKAGE = Path(artemis_lifecycle.__file__).parent


@cache
def _modules() -> dict[str, ast.Module]:
    """By path. Not at the top: each process of a run imports this file, and one runs it."""
    return {
        str(path.relative_to(PACKAGE)): ast.parse(path.read_text())
        for path in sorted(PACKAGE.rglob("*.py"))
        if "migrations" not in path.parts
    }


LIBRARIES = {"_active_spark_context", "_gateway", "_instantiatedSession", "_jvm", "_mapping"}
"""Names of PySpark and SQLAlchemy that a module also has for its own."""


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _defined(module: ast.Module) -> set[str]:
    """The private names that the module defines: functions, classes, variables, fields and attributes of `self`."""
    names: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
    return {name for name in names if _is_private(name)} - LIBRARIES


def _foreign(module: ast.Module, elsewhere: set[str]) -> Iterator[str]:
    own = _defined(module)
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("artemis_lifecycle"):
            yield from (f"line {node.lineno}: imports {each.name}" for each in node.names if _is_private(each.name))
        elif isinstance(node, ast.Attribute) and node.attr in elsewhere - own:
            yield f"line {node.lineno}: uses {ast.unparse(node)}"


@pytest.mark.seconds
def test_no_module_uses_what_is_private_to_another() -> None:
    everywhere = set().union(*(_defined(module) for module in _modules().values()))
    used = [f"{name}, {each}" for name, module in _modules().items() for each in _foreign(module, everywhere)]
    assert used == []


def test_lifecycle_inherits_nothing() -> None:
    assert Lifecycle.__bases__ == (object,)


def test_every_verb_of_lifecycle_is_a_method_of_the_service_that_it_names() -> None:
    assigned, verbs = {"resources": "Resources"}, list[tuple[str, str]]()
    for node in ast.walk(_modules()["api.py"]):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            target, called = node.targets[0], node.value
            if isinstance(target, ast.Attribute):
                assigned[target.attr] = ast.unparse(called.func)
            elif ast.unparse(called.func) == "_verb":
                verbs.append((ast.literal_eval(called.args[0]), ast.unparse(called.args[1]).split(".")[0]))
                assert getattr(Lifecycle, ast.unparse(target)).__doc__, ast.unparse(target)
    assert len(verbs) > 50
    assert [each for each in verbs if assigned[each[0]] != each[1]] == []


def _statements(name: str) -> Iterator[tuple[int, str]]:
    """The number and text of each line that says something: no blanks, comments and imports."""
    imports = [node for node in ast.walk(_modules()[name]) if isinstance(node, ast.Import | ast.ImportFrom)]
    passed_over = {line for node in imports for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    for number, line in enumerate((PACKAGE / name).read_text().splitlines(), start=1):
        if number not in passed_over and line.strip() and not line.strip().startswith("#"):
            yield number, line.strip()


def _repeated(lines: int) -> list[dict[str, str]]:
    """Where so many lines in a row stand in more than one room: a place for each room. The public API repeats the
    signatures of the services."""
    places: defaultdict[tuple[str, ...], dict[str, str]] = defaultdict(dict)
    for name in _modules().keys() - {"api.py"}:
        found = list(_statements(name))
        for start in range(len(found) - lines + 1):
            part = found[start : start + lines]
            places[tuple(text for _, text in part)].setdefault(name.split("/")[0], f"{name}:{part[0][0]}")
    return [rooms for rooms in places.values() if len(rooms) > 1]


@pytest.mark.seconds
def test_no_six_lines_stand_in_two_rooms() -> None:
    assert _repeated(6) == []
    assert _repeated(3), "shorter ones are found, so that longer ones would be"


def test_no_generator_keeps_a_connection_between_its_rows() -> None:
    """A reader that fails would give it back when its error is forgotten; a context manager gives it back at once."""
    found = [
        f"{path}, line {block.lineno}: {function.name}"
        for path, module in _modules().items()
        for function in ast.walk(module)
        if isinstance(function, ast.FunctionDef)
        for block in ast.walk(function)
        if isinstance(block, ast.With)
        and any(isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(block))
        and any(name in ast.unparse(each.context_expr) for each in block.items for name in (".connect(", ".begin("))
        and not any("contextmanager" in ast.unparse(each) for each in function.decorator_list)
    ]
    assert not found
