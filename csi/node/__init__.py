"""The node: maps, file systems and mounts, each behind a contract (`ports`) that real and memory parts fulfil."""
