"""The project's own test bed: a micro Ceph, the plugins on it, the audit, the commands `try` and `test`."""
