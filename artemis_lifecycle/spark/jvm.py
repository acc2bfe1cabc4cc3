"""The gateway to a session's JVM, and Java values for it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.errors import EnvironmentMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def jvm_of(spark: SparkSession) -> Any:
    """Return the JVM of a classic session. Raises EnvironmentMissing for a Spark Connect session."""
    jvm = getattr(spark, "_jvm", None)
    if jvm is None or getattr(spark, "_jsparkSession", None) is None:
        raise EnvironmentMissing(
            "The Spark session has no JVM of its own (Spark Connect)",
            hint="give a classic session: commits go through Iceberg's core in its driver",
        )
    return jvm


def classes_of(thing: Any) -> list[str]:
    """Return the names of a Java object's class and its superclasses."""
    found = []
    kind = thing.getClass()
    while kind is not None:
        found.append(str(kind.getName()))
        kind = kind.getSuperclass()
    return found


def java_longs(jvm: Any, values: Iterable[int]) -> Any:
    """Return a java.util.HashSet<Long>, made with one gateway call for all values."""
    mapper = jvm.com.fasterxml.jackson.databind.ObjectMapper()
    named = jvm.java.lang.Class.forName
    kind = mapper.getTypeFactory().constructCollectionType(named("java.util.HashSet"), named("java.lang.Long"))
    return mapper.readValue(json.dumps(list(values)), kind)


def java_map(jvm: Any, values: Mapping[str, str]) -> Any:
    """Return a java.util.HashMap<String, String>."""
    found = jvm.java.util.HashMap()
    for key, value in values.items():
        found.put(key, value)
    return found


def java_set(jvm: Any, values: Iterable[str]) -> Any:
    """Return a java.util.HashSet<String>."""
    found = jvm.java.util.HashSet()
    for value in values:
        found.add(value)
    return found
