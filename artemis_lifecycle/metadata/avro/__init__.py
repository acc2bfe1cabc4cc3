"""The project's one Avro codec. Source: the Avro specification.

Belongs here: object container files (blocks, codecs, headers), schemas, whole records in and out, and the scan that
takes a few fields and skips the rest. Does not belong: what the fields mean to Iceberg (`manifests`,
`manifest_lists`).
"""
