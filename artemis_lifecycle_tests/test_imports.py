"""The import graph of the package, file by file. pyproject's contracts say which room may import which."""

from __future__ import annotations

import grimp


def test_no_file_imports_itself_by_way_of_others() -> None:
    """Imports for types count too: a reader follows them as well."""
    graph = grimp.build_graph("artemis_lifecycle")
    open_imports = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    assert len(open_imports) > 200
    # Take away, again and again, what imports nothing that is left: what stays is in a cycle, or imports one.
    while done := {module for module, imported in open_imports.items() if not imported}:
        open_imports = {module: imported - done for module, imported in open_imports.items() if module not in done}
    assert not open_imports
