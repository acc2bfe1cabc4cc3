"""The folders of a table to list. Belongs here: which folders, each once. Does not belong here: listing them."""

from __future__ import annotations

from collections.abc import Sequence

from artemis_lifecycle.errors import BadInput
from artemis_lifecycle.protection.identity import Folders
from artemis_lifecycle.protection.ownership import is_root
from artemis_lifecycle.storage.location import LocationRules, is_under, normalize


def folders_to_list(
    table: str,
    current: Sequence[str],
    earlier: Sequence[str],
    location: str | None,
    rules: LocationRules,
    collected_roots: Sequence[str],
) -> list[str]:
    """Return the folders to list: the table's `current` and `earlier` locations, or `location`, which is one of them or
    a folder in one. Of the earlier ones, only those that overlap a root where orphans may be collected."""
    now = {normalize(own, rules) for own in current}
    former = [each for each in dict.fromkeys(earlier) if each not in now]
    folders = Folders(rules)
    if location is None:
        # Where no scan may collect, there is nothing to find.
        collected = [each for each in former if any(folders.overlap(each, root) for root in collected_roots)]
        return _each_once([*current, *collected], folders)
    if not is_root(normalize(location, rules)):
        location = location.rstrip("/")
    own = [*current, *former]
    if not any(normalize(location, rules) == normalize(each, rules) or is_under(location, each, rules) for each in own):
        raise BadInput(
            f"{location} is not one of the table's locations, nor a folder in one ({', '.join(own)})",
            table=table,
            untouched="all files",
            hint="use one of them, or a folder in it",
        )
    return [location]


def _each_once(locations: Sequence[str], folders: Folders) -> list[str]:
    """Remove folders that are equal to, or inside, another one under a second name, so that a file is listed once."""
    found: list[str] = []
    for each in locations:
        if not any(folders.is_in(each, other) for other in found):
            found = [*(other for other in found if not folders.is_in(other, each)), each]
    return found
