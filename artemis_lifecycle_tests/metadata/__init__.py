"""Tests of `artemis_lifecycle.metadata`."""
