"""Build all that `e2e/kube` needs and is not there yet: programs, images, the nodes' disk."""

from __future__ import annotations

import time

from e2e.kubernetes import binaries, images


def main() -> None:
    """Build, and tell how long each took."""
    began = time.monotonic()
    programs = binaries.build()
    print(f"programs in {time.monotonic() - began:.0f} s: {programs}", flush=True)
    began = time.monotonic()
    disk = images.node_disk(programs)
    print(f"images and disk in {time.monotonic() - began:.0f} s: {disk}", flush=True)


if __name__ == "__main__":
    main()
