"""The project's own test bed: a micro Ceph, the plugins on it, the audit, and the two commands `try` and `test`."""
