"""Each Java class is looked up once. py4j asks the JVM for every part of `jvm.org.apache.iceberg.Table` each time it is
written, and Java searches all jars for a class of each package's name: a seventh of what the tests' JVM did.
"""

from __future__ import annotations

import functools
from typing import Any

from py4j.java_gateway import JavaClass, JavaPackage, JVMView


def remember() -> None:
    """Keep what py4j finds, for this process."""
    for owner, named in ((JVMView, "_id"), (JavaPackage, "_fqn")):
        if not hasattr(owner.__getattr__, "__wrapped__"):
            owner.__getattr__ = _kept(owner.__getattr__, named)


def _kept(look_up: Any, named: str) -> Any:
    found: dict[tuple[Any, str, str], Any] = {}

    @functools.wraps(look_up)
    def attribute(self: Any, name: str) -> Any:
        if name.startswith("_"):
            return look_up(self, name)
        key = (self._gateway_client, getattr(self, named), name)
        if key not in found:
            answer = look_up(self, name)
            # What is no class yet can be one later, when its jar is there.
            if not isinstance(answer, JavaClass) and not (isinstance(answer, JavaPackage) and name.islower()):
                return answer
            found[key] = answer
        return found[key]

    return attribute
