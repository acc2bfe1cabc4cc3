"""docs/configuration.md promises what is there: each key, its default, and what the page says of values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel

from artemis_lifecycle.config.loading import ENVIRONMENT, load_config
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.config.policies import TablePolicy

PAGE = (Path(__file__).parents[1] / "docs" / "configuration.md").read_text()
LIVE_ONLY = {("catalogs", "cold", "roots"), ("catalogs", "cold", "isolated")}
ADDRESSES, POLICIES = PAGE.split("\n## Policies\n")


def _rows(text: str) -> Iterator[tuple[list[str], str]]:
    """(Keys, default) of each row; `.x` is beside the key before it."""
    for line in text.splitlines():
        if line.startswith("| `"):
            first, default = re.split(r"(?<!\\)\|", line)[1:3]
            keys: list[str] = []
            for key in re.findall(r"`([^`]+)`", first):
                keys.append(f"{keys[-1].rpartition('.')[0]}{key}" if key.startswith(".") else key)
            yield keys, default.strip()


def _types(annotation: Any) -> list[Any]:
    """What a field may be, without None, and of a dict what it has."""
    found = []
    for each in get_args(annotation) if type(None) in get_args(annotation) else (annotation,):
        if each is not NoneType:
            found.append(get_args(each)[1] if get_origin(each) is dict else each)
    return found


def _leaves(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, field in model.model_fields.items():
        (kind,) = _types(field.annotation)[:1] or (str,)
        inside = (*path, field.alias or name)
        inside += ("*",) if get_origin(field.annotation) is dict and isinstance(kind, type) else ()
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _leaves(kind, inside)
        else:
            yield inside[:-1] if inside[-1] == "*" else inside


def _documented(prefix: tuple[str, ...], text: str) -> set[str]:
    return {".".join((*prefix, *key.split("."))) for keys, _ in _rows(text) for key in keys}


def _matches(documented: str, leaf: tuple[str, ...]) -> bool:
    """Names of others (NAME, PART, CLASS, `*`) stand for any part; `mark.*` for all below it."""
    pattern = [
        r"[^.]+" if part in ("NAME", "PART", "CLASS", "*") else re.escape(part) for part in documented.split(".")
    ]
    text = ".".join(leaf)
    return bool(
        re.fullmatch(r"\.".join(pattern), text) or (documented.endswith("properties.token") and "properties" in leaf)
    )


def test_every_key_is_on_the_page_and_every_key_of_the_page_is_there() -> None:
    documented = _documented((), ADDRESSES) | _documented(("defaults",), POLICIES)
    leaves = [leaf for leaf in _leaves(LifecycleConfig) if leaf[0] != "tables" and leaf not in LIVE_ONLY]
    missing = [leaf for leaf in leaves if not any(_matches(each, leaf) for each in documented)]
    unknown = [each for each in documented if not any(_matches(each, leaf) for leaf in leaves)]
    assert len(leaves) > 100 and (missing, unknown) == ([], [])


def _nested(key: str, value: object) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value  # type: ignore[return-value]


def _at(value: Any, key: str) -> Any:
    for part in key.split("."):
        fields = {field.alias or name: name for name, field in type(value).model_fields.items()}
        value = getattr(value, fields[part])
    return value


CASES = [
    (prefix, key, default)
    for prefix, text in (((), ADDRESSES), (("defaults",), POLICIES))
    for keys, cell in _rows(text)
    for key, default in zip(keys, re.findall(r"`([^`]+)`", cell), strict=False)
    if len(re.findall(r"`([^`]+)`", cell)) == len(keys)
    and not re.search(r"NAME|PART|CLASS|\*|home|lifecycle.yaml", f"{key}{cell}")
]


@pytest.mark.parametrize(("prefix", "key", "default"), CASES, ids=[case[1] for case in CASES])
def test_a_documented_default_is_the_one_that_holds_and_can_be_said(
    prefix: tuple[str, ...], key: str, default: str, tmp_path: Path
) -> None:
    place, file = ".".join((*prefix, key)), tmp_path / "lifecycle.yaml"
    file.write_text(yaml.safe_dump(_nested(place, yaml.safe_load(default))))
    said, untold = load_config(file, {}), LifecycleConfig()
    assert _at(said, place) == _at(untold, place), default


def test_what_the_page_says_of_the_environment_and_of_names_is_so(tmp_path: Path) -> None:
    assert all(f"`{variable}`" in PAGE for variable in ENVIRONMENT)
    blocks = re.findall(r"(?:^    .*\n)+", PAGE, re.MULTILINE)
    (example,) = (block for block in blocks if "${" in block)
    file = tmp_path / "lifecycle.yaml"
    file.write_text(re.sub(r"^    ", "", example, flags=re.MULTILINE))
    names = dict.fromkeys(re.findall(r"(?<!\$)\$\{(\w+)\}", example), "s3cret-value")
    config = load_config(file, names)
    assert names and "s3cret-value" in str(config.catalogs.live.uri) and "s3cret-value" not in repr(config)
    units = re.search(r"Durations are `<integer>` and one of (.*?) \(", PAGE)
    assert units is not None
    for unit in re.findall(r"`(\w+)`", units[1]):
        file.write_text(f"defaults: {{retention: {{window: 3{unit}}}}}")
        assert load_config(file, {}).defaults.retention.window


def test_what_only_the_live_catalog_has_is_refused_of_the_cold_one() -> None:
    for _, _, key in LIVE_ONLY:
        with pytest.raises(ValueError, match=f"catalogs.cold has no {key}"):
            LifecycleConfig.model_validate({"catalogs": {"cold": {key: ["x"]}}})


def test_a_table_may_have_every_section_of_the_defaults() -> None:
    entry = {name: {} for name in TablePolicy.model_fields}
    assert LifecycleConfig.model_validate({"tables": {"a.b": entry}}).policy("a.b") == TablePolicy()
