"""Compile the project's Java classes into the wheel, so that an installed one starts without compiling; and make the
README a page that stands alone.

Compiling needs javac 17 or newer and the jars that the classes are compiled against, in `$ARTEMIS_JARS` or, in a clone,
`.artemis/jars` (`make wheel` gets them). Without either it fails. An editable install needs neither.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


class Readme(MetadataHookInterface):
    """README.md as the description: links and pictures lead to the documentation; what has no page there is text."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling for the fields in `dynamic`."""

        def absolute(link: re.Match[str]) -> str:
            start, text, path, anchor = link.groups(default="")
            page = re.fullmatch(r"docs/(.+)\.(md|png|svg)", path)
            if page is None:
                return text
            suffix = "html" if page[2] == "md" else page[2]
            return f"{start}[{text}]({metadata['urls']['Documentation']}{page[1]}.{suffix}{anchor})"

        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = re.sub(r"(!?)\[([^\]]*)\]\((?!https?:)([^)#]+)(#[^)]*)?\)", absolute, readme)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


class JavaClasses(BuildHookInterface):  # type: ignore[type-arg]
    """Adds `artemis_lifecycle/spark/java/<folder>.jar`, one for each folder there, to a wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects the wheel's files. An editable install compiles at `make setup`."""
        if version == "editable":
            return
        root = Path(self.root)
        place = root / "artemis_lifecycle" / "embedded" / "java_classes.py"
        spec = spec_from_file_location("java_classes", place)
        assert spec is not None and spec.loader is not None
        java = module_from_spec(spec)
        spec.loader.exec_module(java)

        java_home = os.environ.get("JAVA_HOME")
        javac = shutil.which("javac", path=os.path.join(java_home, "bin") if java_home else None)
        jars = Path(os.environ.get("ARTEMIS_JARS") or root / ".artemis" / "jars")
        # Outside the tree: a jar beside the sources would be taken for theirs when they have changed.
        self.work = tempfile.TemporaryDirectory(prefix="artemis-classes-")
        for folder in java.CLASS_PATHS:
            libraries = java.class_path(folder, sorted(jars.glob("*.jar")))
            if javac is None or not libraries:
                lacking = f"{' and '.join(java.CLASS_PATHS[folder])} in {jars}" if javac else "javac"
                raise RuntimeError(
                    f"The wheel would have no compiled {folder}.jar: there is no {lacking}. `make wheel` has what is "
                    "needed; else install a JDK 17 and name the jars' folder in ARTEMIS_JARS."
                )
            jar = Path(self.work.name) / f"{folder}.jar"
            compiler = [javac, "--release", "17", "-nowarn", "-Xlint:none"]
            said = java.compile_folder(java.SOURCES / folder, compiler, libraries, jar)
            if said:
                raise RuntimeError(f"{java.SOURCES / folder} does not compile:\n{said}")
            build_data["force_include"][str(jar)] = f"artemis_lifecycle/spark/java/{folder}.jar"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called when the wheel is written."""
        if version != "editable":
            self.work.cleanup()
