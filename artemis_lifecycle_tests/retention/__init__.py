"""Tests of `artemis_lifecycle.retention`."""
