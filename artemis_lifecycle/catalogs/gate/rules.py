"""The gate's rules: the entries of `tables` in lifecycle.yaml, in an order in which the first match wins."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import translate
from typing import Literal

from artemis_lifecycle.catalogs.results import NAMESPACE
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.config.names import spelled
from artemis_lifecycle.contracts import LineageRequirements

Mode = Literal["reject", "report", "none"]


@dataclass(frozen=True)
class Rule:
    """What `entry` of lifecycle.yaml says of commits to tables whose identifier is `pattern` (`exact`), or matches it
    as a whole as a regular expression of Postgres. `requirements` is the JSON object of LineageRequirements. Mode
    `none`: the tables are not governed."""

    entry: str
    pattern: str
    exact: bool
    mode: Mode
    requirements: str


def rules_of(config: LifecycleConfig) -> tuple[Rule, ...]:
    """Return the rules of lifecycle.yaml: the first one that matches a table is that of `LifecycleConfig.entry`."""
    return tuple(_rules(config))


def _rules(config: LifecycleConfig) -> Iterator[Rule]:
    yield Rule(
        f"{NAMESPACE}.*",
        rf"{NAMESPACE}\..*",
        False,
        "none",
        _json(LineageRequirements.from_config(config.defaults.lineage)),
    )
    # As LifecycleConfig.entry: an exact key first, then the pattern that leaves least to its wildcards.
    keys = sorted(config.tables, key=lambda key: (len(key.replace("*", "")), key), reverse=True)
    for key in keys:
        yield _rule(config, key, spelled(key), exact=True)
    for key in keys:
        if re.search(r"[*?[]", key):
            yield _rule(config, key, regular_expression(key), exact=False)


def _rule(config: LifecycleConfig, key: str, pattern: str, *, exact: bool) -> Rule:
    lineage = config.policy(key).lineage
    return Rule(key, pattern, exact, lineage.mode, _json(LineageRequirements.from_config(lineage)))


def _json(requirements: LineageRequirements) -> str:
    # In the form in which the database returns it, so that both can be compared.
    return json.dumps(json.loads(requirements.as_json()), ensure_ascii=False, sort_keys=True)


_TOKEN = re.compile(r"(?s)\*+|\?|\[!?\]?[^\]]*\]|.")


def regular_expression(glob: str) -> str:
    """Return the regular expression, for Python and Postgres, of a glob as `fnmatch` reads it."""
    return "".join(map(_translated, _TOKEN.findall(glob)))


def _translated(token: str) -> str:
    if token.startswith("*"):
        return ".*"
    if token == "?":
        return "."
    if len(token) > 1:
        # fnmatch knows what each class means; without its frame, (?s:…)\Z. Postgres has classes of classes, as [.a.].
        inner = translate(token)[4:-3]
        return re.sub("[.:=]", r"\\\g<0>", inner) if inner.startswith("[") else inner
    return "\\" + token if token in r"\.^$|()[]{}+?*" else token


def governed_mode(config: LifecycleConfig, table: str) -> Mode:
    """Return what applies to a commit to `table`; `none` if no entry of lifecycle.yaml governs it."""
    if table.startswith(f"{NAMESPACE}.") or config.entry(table) is None:
        return "none"
    return config.policy(table).lineage.mode
