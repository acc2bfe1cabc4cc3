"""What tests do to a real Nessie server: through its API, without the product's client, and through Spark with
Iceberg's NessieCatalog."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import requests

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.deployments import FOLDER
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import open_lifecycle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = "2e1cfa82b035c26cbbbdae632cea070514eb8b773f616aaeaf668e2f0be8f10d"
"""The commit before the first one, in every Nessie."""


@dataclass
class World:
    """An empty Nessie, its catalog `name` in a configuration, and Spark. `folder` is the catalog's warehouse."""

    api: str
    name: str
    config: LifecycleConfig
    spark: SparkSession
    catalogs: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return Path(str(self.config.catalogs.others[self.name].warehouse).removeprefix("file://"))

    def open(self) -> AbstractContextManager[Lifecycle]:
        return open_lifecycle(self.config, spark=self.spark)

    # --- the API ----------------------------------------------------------------------------------------------------

    def call(self, method: str, path: str, body: Any = None, **params: str) -> Any:
        answer = requests.request(method, f"{self.api}/{path}", json=body, params=params, timeout=60)
        assert answer.ok, (method, path, answer.status_code, answer.text)
        return answer.json() if answer.content else None

    def head(self, ref: str = "main") -> str:
        return str(self.call("GET", f"trees/{ref}")["reference"]["hash"])

    def reset(self) -> None:
        for ref in self.call("GET", "trees")["references"]:
            if ref["name"] == "main":
                self.assign("main", ROOT)
            else:
                self.delete(ref["name"])

    def create(self, name: str, source: str = "main", kind: str = "BRANCH", at: str | None = None) -> None:
        body = {"type": "BRANCH", "name": source, "hash": at or self.head(source)}
        self.call("POST", "trees", body, name=name, type=kind)

    def tag(self, name: str, source: str = "main") -> None:
        self.create(name, source, "TAG")

    def delete(self, name: str) -> None:
        self.call("DELETE", f"trees/{name}@{self.head(name)}")

    def assign(self, name: str, to: str) -> None:
        self.call("PUT", f"trees/{name}@{self.head(name)}", {"type": "DETACHED", "hash": to})

    def merge(self, source: str, into: str = "main") -> None:
        body = {"fromRefName": source, "fromHash": self.head(source)}
        done = self.call("POST", f"trees/{into}@{self.head(into)}/history/merge", body)
        assert done["wasApplied"], done

    def commit(self, ref: str, *operations: dict[str, Any]) -> None:
        body = {"commitMeta": {"message": "a test"}, "operations": operations}
        self.call("POST", f"trees/{ref}@{self.head(ref)}/history/commit", body)

    def content(self, key: str, ref: str = "main") -> dict[str, Any]:
        found = self.call("GET", f"trees/{ref}/contents/{key}")
        return dict(found["content"])

    def put(self, ref: str, key: str, content: dict[str, Any]) -> None:
        self.commit(ref, {"type": "PUT", "key": {"elements": key.split(".")}, "content": content})

    def drop(self, key: str, ref: str = "main") -> None:
        self.commit(ref, {"type": "DELETE", "key": {"elements": key.split(".")}})

    # --- Spark ------------------------------------------------------------------------------------------------------

    def catalog(self, ref: str = "main") -> str:
        """The name of a reference's catalog in Spark."""
        name = f"{self.config.catalogs.live.name}_{ref}"
        if name not in self.catalogs:
            prefix = f"spark.sql.catalog.{name}"
            self.spark.conf.set(prefix, "org.apache.iceberg.spark.SparkCatalog")
            for key, value in {
                "catalog-impl": "org.apache.iceberg.nessie.NessieCatalog",
                "uri": self.api,
                "ref": ref,
                "warehouse": f"file://{self.folder}",
                "client-api-version": "2",
                "cache-enabled": "false",
            }.items():
                self.spark.conf.set(f"{prefix}.{key}", value)
            self.catalogs.append(name)
        return name

    def sql(self, statement: str, ref: str = "main") -> list[tuple[Any, ...]]:
        """Run a statement on a reference: `{}` is the catalog's name in Spark."""
        return [tuple(row) for row in core_tables.answer(self.spark, statement.format(self.catalog(ref)))]

    def table(self, key: str, ref: str = "main", rows: int = 1, **properties: str) -> None:
        """Create a table with one commit per row."""
        if not self.sql("SHOW NAMESPACES IN {}", ref):
            self.sql(f"CREATE NAMESPACE IF NOT EXISTS {{}}.{key.split('.')[0]}", ref)
        given = ", ".join(f"'{name}'='{value}'" for name, value in properties.items())
        self.sql(f"CREATE TABLE {{}}.{key} (n INT) USING iceberg" + (f" TBLPROPERTIES ({given})" if given else ""), ref)
        for row in range(rows):
            self.insert(key, row, ref)

    def insert(self, key: str, row: int, ref: str = "main") -> None:
        self.sql(f"INSERT INTO {{}}.{key} VALUES ({row})", ref)

    def rows(self, key: str, ref: str = "main") -> list[int]:
        return sorted(row[0] for row in self.sql(f"SELECT n FROM {{}}.{key}", ref))

    # --- files ------------------------------------------------------------------------------------------------------

    def files(self) -> set[str]:
        """Every file in the warehouse, relative to it, without checksums and the records of its deployment."""
        found = (path for path in self.folder.rglob("*") if path.is_file() and not path.name.endswith(".crc"))
        return {str(path.relative_to(self.folder)) for path in found if path.parent.name != FOLDER}

    def relative(self, path: str) -> str:
        return path.removeprefix("file:").removeprefix("//").removeprefix(f"{self.folder}/")

    def data_files(self, key: str, ref: str = "main") -> set[str]:
        return {self.relative(row[0]) for row in self.sql(f"SELECT file_path FROM {{}}.{key}.files", ref)}


def deleting(world: World) -> World:
    """The same catalog, whose sweeps delete what is unseen."""
    other = world.config.catalogs.others[world.name]
    mark = other.mark.model_copy(update={"unseen": "delete"})
    catalogs = world.config.catalogs.model_copy(
        update={"others": {world.name: other.model_copy(update={"mark": mark})}}
    )
    return World(
        world.api, world.name, world.config.model_copy(update={"catalogs": catalogs}), world.spark, world.catalogs
    )
