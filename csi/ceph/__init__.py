"""The real Ceph: connections, sessions and images through `rados` and `rbd`."""
