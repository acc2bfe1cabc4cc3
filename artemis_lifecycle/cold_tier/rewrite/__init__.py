"""Files that contain paths, as bytes to bytes: manifest lists, manifests, position-delete files, deletion vectors.
Pure: no store, no Spark, only a path mapping. Source: format/spec.md ("Manifest Lists", "Manifests", "Delete Formats")
and format/puffin-spec.md.

Where paths are, in format versions 1 to 4:

- manifest list: `manifest_path` (500), together with `manifest_length` (501);
- manifest: `file_path` (100) and `referenced_data_file` (143), together with `file_size_in_bytes` (104); for rewritten
  delete files also `split_offsets` (132), `column_sizes` (108) and the bounds (125, 128) of the column `file_path`;
- position-delete file: the column `file_path` (field id 2147483546), in rows, dictionaries and statistics;
- manifest list and manifest: the partition spec's id, as field 502 and in the header, and the sort order's (140), if
  the other tier uses a different one (`evolution`);
- deletion vector: the blob property `referenced-data-file` in the Puffin footer. Blobs precede the footer, so
  `content_offset` and `content_size_in_bytes` stay valid; only the file's size changes.

Everything else stays: values that only look like paths, headers, unknown fields, inherited nulls (sequence numbers,
snapshot ids, first row ids, which the list entry has) and the order of entries, on which row lineage depends.
"""
