"""What an executor does of a listing: lists spans, keeps what lies below a folder. Apart from `listing`, because every
worker that starts loads this module, and should load little with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import TYPE_CHECKING

from artemis_lifecycle.errors import BadInput
from artemis_lifecycle.storage.location import LocationRules, is_under, normalise
from artemis_lifecycle.storage.location_hash import text_buffers
from artemis_lifecycle.storage.stores import Stores, is_local
from artemis_lifecycle.storage.types import Span

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

SPAN_FILES = "path string, last_modified timestamp, size_in_bytes bigint, is_rest boolean"
"""What `Lister` gives: files, and of a span that it did not finish the rest as JSON, in `path`."""

SpanFile = tuple[str, datetime | None, int | None, bool]
"""A row of SPAN_FILES."""

_ROWS = 10_000


class Lister:
    """Lists spans on an executor, `most` files of each (None: all); what is left of one is a row of its own."""

    def __init__(self, stores: Stores, most: int | None) -> None:
        self.stores = stores
        self.most = most

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows: list[SpanFile] = []
        for batch in batches:
            for span in batch.column("span").to_pylist():
                for row in self._rows(Span(**json.loads(span))):
                    rows.append(row)
                    if len(rows) >= _ROWS:
                        yield span_files(rows)
                        rows = []
        if rows:
            yield span_files(rows)

    def _rows(self, span: Span) -> Iterator[SpanFile]:
        if span == Span(span.prefix) and (self.most is None or is_local(span.prefix)):
            for file in self.stores.list(span.prefix):
                yield file.path, file.last_modified, file.size_in_bytes, False
            return
        for number, file in enumerate(self.stores.list_span(span), start=1):
            yield file.path, file.last_modified, file.size_in_bytes, False
            if number == self.most:
                yield json.dumps(asdict(replace(span, after=file.path))), None, None, True
                return


def span_files(rows: Sequence[SpanFile]) -> pa.RecordBatch:
    """Columns as SPAN_FILES."""
    import pyarrow as pa

    paths, modified, sizes, is_rest = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pa.RecordBatch.from_pydict(
        {
            "path": pa.array(paths, pa.string()),
            "last_modified": pa.array(modified, pa.timestamp("us", "UTC")),
            "size_in_bytes": pa.array(sizes, pa.int64()),
            "is_rest": pa.array(is_rest, pa.bool_()),
        }
    )


class Below:
    """Keeps the rows whose path is below one of the folders. Raises BadInput for a row without a path, or with one that
    is no text."""

    def __init__(self, folders: Sequence[str], rules: LocationRules) -> None:
        self.folders = tuple(folders)
        self.roots = tuple(normalise(folder, rules) for folder in folders)
        self.rules = rules

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import numpy as np
        import pyarrow as pa

        paths = batch.column("path")
        if paths.null_count:
            raise BadInput("The listing has a row without a path", hint="leave such rows out")
        try:
            paths.validate(full=True)
        except pa.ArrowInvalid as error:
            raise BadInput(f"The listing has a path that is no UTF-8: {error}", hint="leave such rows out") from error
        below = self._plainly(paths)
        for row in np.flatnonzero(~below).tolist():
            below[row] = any(is_under(paths[row].as_py(), root, self.rules) for root in self.roots)
        return batch if below.all() else batch.filter(pa.array(below))

    def _plainly(self, paths: pa.Array) -> NDArray[np.bool_]:
        """Where a path begins as a folder is spelled, and goes on without a dot or slash that could lead elsewhere."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        below = np.zeros(len(paths), np.bool_)
        for folder in self.folders:
            begun = pc.and_(pc.starts_with(paths, f"{folder}/"), pc.not_equal(paths, f"{folder}/"))
            if begun.true_count == 0:
                continue
            if begun.true_count == len(paths) and _turns(paths) == len(paths) * _turns(pa.array([folder])):
                # No path has fewer than the folder that it begins with, so none has more.
                return np.ones(len(paths), np.bool_)
            # A folder ends without a slash: what it has of these by itself is what a plain path below it has.
            for odd in ("//", "/."):
                begun = pc.and_(begun, pc.equal(pc.count_substring(paths, odd), folder.count(odd)))
            below |= begun.to_numpy(zero_copy_only=False)
        return below


def _turns(paths: pa.Array) -> int:
    """How often a slash stands before a slash or a dot in any of the paths, or at their seams."""
    import numpy as np

    starts, data = text_buffers(paths)
    text = data[starts[0] : starts[-1]]
    behind = text[np.flatnonzero(text[:-1] == ord("/")) + 1]
    return int(np.count_nonzero((behind == ord("/")) | (behind == ord("."))))
