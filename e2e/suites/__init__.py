"""Suites on a real Ceph and real processes, one command each."""
