"""Tests of `artemis_lifecycle.storage`, and what other rooms' tests borrow: `s3_server` and `faults`."""
