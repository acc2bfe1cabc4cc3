"""Mark of a whole catalog: what its references keep alive, recorded as a live-contents set."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from artemis_lifecycle.catalogs.identifier import dotted
from artemis_lifecycle.catalogs.references import ReferenceSource
from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle.live_sets.mark import Policies, mark
from artemis_lifecycle.live_sets.tables import VersionMetadata, contents_of, version_metadata
from artemis_lifecycle.operations.known_tables import Seen
from artemis_lifecycle.operations.live_sets import LiveContent, LiveSet, Snapshots
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.storage.location import normalize

_BATCH = 500


@dataclass(frozen=True)
class MarkedCatalog:
    """A catalog to mark. `prefix` begins its tables' names. Without `has_branches`, each reference is one table."""

    name: str
    source: ReferenceSource
    prefix: str
    has_branches: bool


def mark_catalog(
    resources: Resources, catalog: MarkedCatalog, policies: Policies, snapshots: Snapshots, threads: int
) -> LiveSet:
    """Record a new set. Raises ClocksDisagree if a cutoff is a time; what the catalog raises: then the set is `failed`,
    and nothing can be swept from it."""
    if any(cutoff.since is not None for _, cutoff in policies.rules):
        resources.require_clocks()
    sets, live_set_id = resources.operations.live_sets, f"live-{uuid.uuid4().hex}"
    sets.begin(live_set_id, catalog.name, snapshots, policies.texts())
    try:
        references = catalog.source.references()
        if catalog.has_branches and not references:
            raise UnreadableMetadata(
                f"Catalog {catalog.name} shows no reference at all, not even its default branch",
                untouched="all files",
                hint="check that its uri is that of the right server",
            )
        done = mark(
            catalog.source,
            policies,
            sets,
            live_set_id,
            references=references,
            threads=threads,
            # Questions mark a Nessie catalog, too, as do deletions that ask who reads their files: verbs check it.
            check=partial(resources.require_deployment, "" if catalog.has_branches else catalog.prefix),
        )
        default: Mapping[str, str] | None = None
        if catalog.has_branches:
            heads = catalog.source.contents_at(references[0].head)
            default = {content.content_id: dotted(content.key) for content in heads}
        locations: dict[tuple[str, str], str] = {}
        batch: list[LiveContent] = []
        seen: dict[str, Seen] = {}
        last_read: dict[str, str] = {}

        def read(metadata_location: str) -> VersionMetadata:
            metadata = version_metadata(resources.live_stores, metadata_location)
            last_read[metadata.table_uuid] = metadata_location
            return metadata

        with sets.versions(live_set_id) as versions:
            for content in contents_of(live_set_id, catalog.prefix, versions, default, read):
                batch.append(content)
                if content.table_uuid is not None:
                    seen.setdefault(content.table_uuid, Seen(content.table, last_read[content.table_uuid]))
                    locations |= {(content.table_uuid, each): content.table for each in content.locations}
                if len(batch) == _BATCH:
                    sets.add_contents(batch)
                    batch = []
        sets.add_contents(batch)
        _remember(resources, catalog.name, seen, locations)
        sets.saw_locations(catalog.name, locations)
        return sets.finish(live_set_id, commits=done.commits)
    except BaseException as error:
        sets.fail(live_set_id, str(error) or type(error).__name__)
        raise


def _remember(
    resources: Resources, catalog: str, seen: Mapping[str, Seen], locations: Iterable[tuple[str, str]]
) -> None:
    """Record tables that no sweep has seen yet. Otherwise nobody would know of one that is dropped before the first."""
    known = {each.table_uuid for each in resources.operations.known_tables.of_catalog(catalog)}
    for table_uuid in seen.keys() - known:
        rules = resources.rules(seen[table_uuid].table)
        places = [normalize(place, rules) for each, place in locations if each == table_uuid]
        resources.operations.table_locations.saw(table_uuid, places, seen[table_uuid].metadata_location)
        # Last: who is known is not recorded again.
        resources.operations.known_tables.saw(catalog, table_uuid, seen[table_uuid])
