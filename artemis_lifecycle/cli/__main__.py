"""`python -m artemis_lifecycle.cli`: the `artemis` command."""

from __future__ import annotations

from artemis_lifecycle.cli import main

if __name__ == "__main__":
    main()
