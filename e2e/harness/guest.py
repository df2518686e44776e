"""A Linux guest with a kernel of its own (User-Mode Linux), and so with the real RBD driver.

Its root is this host's `/` under a tmpfs: what it writes there is gone when it ends.  `shares` are folders of
the host that both see and write, at the same path.  `kill` is a power cut.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from e2e.harness import network, processes
from e2e.harness.network import Network

_FILES = pathlib.Path(__file__).with_name("guest_files")
_KERNEL = "linux.uml"
_UP_SECONDS = 60.0
_STOP_SECONDS = 20.0
_KILL_SECONDS = 10.0


class GuestError(Exception):
    """A guest does not do what was asked; the text ends with its console."""


class Guest:
    """One guest in `folder`, the `number`th of its network."""

    def __init__(
        self,
        folder: pathlib.Path,
        network_of: Network,
        *,
        number: int = 1,
        shares: Sequence[pathlib.Path] = (),
        disk: str = "",
        memory: str = "2G",
        name: str = "node-1",
        tmpfs: str = "1G",
        startup: pathlib.Path | None = None,
    ) -> None:
        """`disk` is a file, or `COPY_ON_WRITE:BASE`, that becomes `/dev/ubda`.

        `startup` is a program of a share that runs from each start on.
        """
        self.folder = folder
        self.address = network.address(number)
        self.name = name
        self._network = network_of
        self._tap = f"tap{number}"
        self._shares = tuple(shares)
        self._disk = disk
        self._memory = memory
        self._tmpfs = tmpfs
        self._startup = startup
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Boot; returns when the guest takes commands.  Raises GuestError."""
        self.boot()
        self.await_up()

    def boot(self) -> None:
        """Begin to boot.  Raises GuestError."""
        kernel = shutil.which(_KERNEL)
        if kernel is None:
            raise GuestError(f"{_KERNEL} is not installed; e2e/setup installs the package user-mode-linux")
        self.folder.mkdir(parents=True, exist_ok=True)
        version = subprocess.run([kernel, "--version"], capture_output=True, text=True, check=True).stdout
        self._network.add_tap(self._tap)
        settings = {
            "G_SHARES": ":".join(map(str, self._shares)),
            "G_MODULES": f"/usr/lib/uml/modules/{version.strip()}",
            "G_ADDRESS": self.address,
            "G_TMPFS": self._tmpfs,
            "G_NAME": self.name,
            "G_AGENT": str(_FILES / "agent.py"),
            **({"G_RC": str(self._startup)} if self._startup else {}),
        }
        command = [
            kernel,
            f"mem={self._memory}",
            *("root=none", "rootfstype=hostfs", "rootflags=/", "rw", "quiet"),
            f"init={_FILES / 'init.sh'}",
            *(f"{name}={value}" for name, value in settings.items()),
            *((f"ubd0={self._disk}",) if self._disk else ()),
            *(f"uml_dir={self.folder}", "umid=guest"),
            f"vec0:transport=tap,ifname={self._tap},depth=128,gro=1",
            *("con=null", "con0=null,fd:1", "con1=null", "ssl=null"),
        ]
        with self._console.open("wb") as console:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env={**os.environ, "LD_PRELOAD": str(self._preloaded())},
                start_new_session=True,
            )
        self._pid_file.write_text(f"{self._process.pid}\n")

    def command(self, argv: Sequence[str]) -> list[str]:
        """What runs a command in the guest, for whoever starts processes here; streams and exit code pass."""
        return ["/usr/bin/python3", "-S", str(_FILES / "agent.py"), self.address.partition("/")[0], *argv]

    def run(self, *argv: str, check: bool = True) -> str:
        """Run a command in the guest and return its output.  Raises CalledProcessError, with `check`."""
        done = subprocess.run(
            self.command(argv), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if check and done.returncode:
            sys.stderr.write(done.stderr)
            done.check_returncode()
        return done.stdout

    @property
    def runs(self) -> bool:
        """Whether the guest is up, as far as its process tells."""
        return self._pid() is not None

    def kill(self) -> None:
        """Cut the power, with the helpers of the guest's process, which outlive it and keep the tap busy."""
        pid = self._pid()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            if self._process is not None:
                self._process.wait()
            processes.await_end(pid, _KILL_SECONDS)
        self._process = None
        self._pid_file.unlink(missing_ok=True)
        self._network.remove_tap(self._tap)

    def stop(self) -> None:
        """Write everything back and power off; a guest that does not within its time is killed."""
        pid = self._pid()
        if pid is not None:
            words = ["sh", "-c", "sync; echo o >/proc/sysrq-trigger"]
            try:
                subprocess.run(
                    self.command(words),
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=_STOP_SECONDS,
                    check=False,
                )
                processes.await_end(pid, _STOP_SECONDS)
            except subprocess.TimeoutExpired:
                print(f"guest {self.name} does not power off and is killed", file=sys.stderr)
        self.kill()

    @property
    def _console(self) -> pathlib.Path:
        return self.folder / "console.log"

    @property
    def _pid_file(self) -> pathlib.Path:
        return self.folder / "pid"

    def _pid(self) -> int | None:
        """The guest's process, started by this program or by an earlier one, if it runs."""
        if self._process is not None:  # it executes itself anew while it boots, and has no words for a moment
            return self._process.pid if self._process.poll() is None else None
        try:
            pid = int(self._pid_file.read_text())
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        return pid if f"uml_dir={self.folder}".encode() in words and processes.alive(pid) else None

    def await_up(self) -> None:
        """Wait until the guest takes commands.  Raises GuestError."""
        deadline = time.monotonic() + _UP_SECONDS
        while time.monotonic() < deadline and self.runs:
            said = self._console.read_bytes()
            if b"GUEST-FAILED" in said:
                break
            if b"GUEST-UP" in said and self._answers():
                return
            time.sleep(0.05)
        said = self._console.read_bytes()
        self.kill()
        tail = said.decode(errors="replace")[-2000:]
        raise GuestError(f"guest {self.name} does not come up; its console ends:\n{tail}")

    def _answers(self) -> bool:
        probe = self.command(["true"])
        done = subprocess.run(probe, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        return done.returncode == 0

    def _preloaded(self) -> pathlib.Path:
        library = self.folder / "xsave.so"
        if not library.exists():
            source = str(_FILES / "xsave.c")
            subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), source], check=True)
        return library
