"""Tests, mirrored on the package room by room; `integration/` holds whole walks."""
