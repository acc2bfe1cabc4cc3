"""The project as a Dagster component: `dg scaffold defs artemis_lifecycle.defs.component.LifecycleComponent NAME`."""

from typing import Optional

import dagster as dg
from pydantic import Field

from artemis_lifecycle.defs.build import build_definitions


class LifecycleComponent(dg.Component, dg.Model, dg.Resolvable):
    """The assets, checks, jobs, schedules and sensors of Artemis Lifecycle, for one lifecycle.yaml."""

    config_path: Optional[str] = Field(
        default=None, description="lifecycle.yaml; a relative path is from the component's own folder."
    )
    key_prefix: Optional[list[str]] = Field(default=None, description="What precedes the names of the assets.")
    owners: Optional[list[str]] = Field(default=None, description="Owners of the assets, such as team:data.")
    tags: Optional[dict[str, str]] = Field(default=None, description="Tags of the assets.")
    upstream: Optional[list[str]] = Field(
        default=None, description="Keys of assets that write to the tables, such as ingestion/passes."
    )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions. Loading reads lifecycle.yaml, and connects to nothing."""
        return build_definitions(
            None if self.config_path is None else context.path / self.config_path,
            key_prefix=self.key_prefix,
            owners=self.owners,
            tags=self.tags,
            upstream=[key.split("/") for key in self.upstream or ()],
        )
