"""The documentation: a site without a broken link, and tables that can be read at a glance."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
MOST_WORDS = 20


def _cells(page: Path) -> list[str]:
    in_code, cells = False, []
    for line in page.read_text().splitlines():
        in_code ^= line.startswith("```")
        if line.startswith("|") and not in_code:
            cells += re.split(r"(?<!\\)\|", line.strip().strip("|"))
    return [re.sub(r"\]\([^)]*\)", "]", cell) for cell in cells]


def test_a_cell_of_a_table_has_at_most_twenty_words() -> None:
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]
    long = {page.name: cell for page in pages for cell in _cells(page) if len(cell.split()) > MOST_WORDS}
    assert len(pages) > 20 and not long


def test_each_message_of_the_page_of_errors_is_one_that_the_code_has() -> None:
    trees = [ast.parse(path.read_text()) for path in (REPOSITORY / "artemis_lifecycle").rglob("*.py")]
    nodes = (node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant))
    said = "\n".join(value for value in nodes if isinstance(value, str))
    rows = re.findall(r"^\| (`.+?) \|", (REPOSITORY / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)
    messages = [message for row in rows for message in re.findall(r"`([^`]+)`", row)]
    assert len(messages) > 30 and [message for message in messages if message not in said] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("docs")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(home / "site")],
        cwd=REPOSITORY,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), "PYTHONPATH": str(REPOSITORY), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert built.returncode == 0, built.stderr
    return home / "site"


@pytest.mark.slow
def test_the_site_builds_without_a_warning(site: Path) -> None:
    assert "expiration_plan" in (site / "reference" / "assets.html").read_text()
    assert "plan_expiration" in (site / "reference" / "lifecycle.html").read_text()
    assert "scan-orphans" in (site / "reference" / "command-line.html").read_text()


@pytest.mark.slow
def test_the_search_answers_from_the_disk_and_loads_nothing_from_another_host(site: Path) -> None:
    for page in (site / "index.html", site / "reference" / "assets.html"):
        assert re.search(r'<(script|link)(?! rel="?canonical)[^>]+(src|href)="https?:', page.read_text()) is None, page
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no Chromium on the path")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"]
    asked = [browser, *flags, f"file://{site}/index.html?q=quarantine"]
    shown = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=True).stdout
    assert re.search(r"[1-9]\d* matching documents", shown)
