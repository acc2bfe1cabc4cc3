"""The size of the package is a ratchet: `make lint` runs this, and fails when the package has grown.

`[tool.artemis_lifecycle.size]` in pyproject.toml has the bounds: lines and files of all text under `artemis_lifecycle/`
(Python, Java, SQL, templates), and Python statements, so that no line is saved by writing two in one. `--lower` writes
what is there now, where that is less. Whoever raises a number says why in the commit. A file above `LONG` lines says in
its docstring why it is one story: "One file: …".
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "artemis_lifecycle"
LONG = 700


def sources() -> Iterator[Path]:
    """Every text file of the package."""
    for path in sorted(PACKAGE.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and b"\0" not in path.read_bytes():
            yield path


def measured(files: list[Path]) -> dict[str, int]:
    texts = {path: path.read_text() for path in files}
    trees = [ast.parse(text) for path, text in texts.items() if path.suffix == ".py"]
    return {
        "lines": sum(len(text.splitlines()) for text in texts.values()),
        "files": sum(path.name != "py.typed" for path in files),
        "statements": sum(isinstance(node, ast.stmt) for tree in trees for node in ast.walk(tree)),
    }


def faults(files: list[Path], sizes: dict[str, int], bounds: dict[str, int]) -> Iterator[str]:
    for name, size in sizes.items():
        if size > bounds[name]:
            yield f"The package has {size:,} {name}; pyproject.toml allows {bounds[name]:,}. Make something needless."
    for path in files:
        text = path.read_text()
        if (
            path.suffix == ".py"
            and len(text.splitlines()) > LONG
            and "One file:" not in (ast.get_docstring(ast.parse(text)) or "")
        ):
            yield f'{path.relative_to(ROOT)} has more than {LONG} lines, and its docstring has no "One file: …".'
        if "fmt: off" in text or "fmt: skip" in text:
            yield f"{path.relative_to(ROOT)} turns the formatter off."


def main(arguments: list[str]) -> int:
    files, settings = list(sources()), ROOT / "pyproject.toml"
    text = settings.read_text()
    bounds: dict[str, int] = tomllib.loads(text)["tool"]["artemis_lifecycle"]["size"]
    sizes = measured(files)
    if "--lower" in arguments:
        for name, size in sizes.items():
            text = re.sub(rf"(?m)^{name} = [\d_]+$", f"{name} = {min(size, bounds[name]):_}", text)
        settings.write_text(text)
        return 0
    found = list(faults(files, sizes, bounds))
    print("\n".join(found or [", ".join(f"{size:,} {name}" for name, size in sizes.items())]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
