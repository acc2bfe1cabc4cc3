"""The project's only Avro codec. Source: the Avro specification.

Belongs here: object container files (blocks, codecs, headers), schemas, whole records in and out, and the scan that
reads a few fields and skips the rest. Does not belong here: what the fields mean to Iceberg (`manifests`,
`manifest_lists`).
"""
