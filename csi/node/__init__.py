"""The node: maps, file systems and mounts, behind a contract (`ports`) that real and memory parts fulfil."""
