"""The command line's arguments and its start."""

from __future__ import annotations

import io
import pathlib
import stat
import sys

import pytest

from csi import logs
from csi.cli import arguments, main
from csi.settings import SettingsError
from executor.context import Periods

LEAST = ["serve", "--controller", "--endpoint", "unix:///run/csi.sock"]


def test_folders_follow_the_drivers_name() -> None:
    settings = arguments.to_settings(arguments.parser().parse_args([*LEAST, "--driver-name", "a.b"]))

    assert settings.socket == pathlib.Path("/run/csi.sock")
    assert (settings.run_dir, settings.state_dir) == (pathlib.Path("/run/a.b"), pathlib.Path("/var/lib/a.b"))
    assert settings.periods == Periods()


def test_every_period_is_a_flag() -> None:
    flags = {
        "--instance-beat": "500ms",
        "--abandon-after": "30m",
        "--recovery-interval": "1.5m",
        "--tombstone-ttl": "2d",
        "--trash-retention": "0",
        "--purge-interval": "7",
    }
    words = [word for pair in flags.items() for word in pair]

    settings = arguments.to_settings(arguments.parser().parse_args([*LEAST, *words]))

    assert settings.periods == Periods(
        beat=0.5, abandonment=1800.0, recovery=90.0, tombstone=172_800.0, trash=0.0, purge=7.0
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["serve"], "--endpoint"),
        (["serve", "--endpoint", "tcp://x"], "unix:///absolute/path"),
        (["serve", "--endpoint", "unix://relative"], "unix:///absolute/path"),
        (["serve", "--endpoint", "unix:///" + "a" * 107], "at most 107"),
        ([*LEAST, "--abandon-after", "soon"], "'soon' is no duration"),
        ([*LEAST, "--workers", "many"], "--workers"),
        (["dance"], "dance"),
    ],
)
def test_words_that_cannot_be_understood_end_it_with_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments.parser().parse_args(words)

    assert ended.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["serve", "--endpoint", "unix:///a"], "--controller, --node or both"),
        (["serve", "--endpoint", "unix:///a", "--node"], "--node-id"),
        ([*LEAST, "--node-id", "a/b"], "--node-id is 'a/b'"),
        ([*LEAST, "--node-id", "a" * 129], "at most 128 bytes"),
        ([*LEAST, "--driver-name", "a_b"], "--driver-name is 'a_b'"),
        ([*LEAST, "--driver-name", "a" * 64], "at most 63"),
        ([*LEAST, "--run-dir", "run"], "--run-dir is 'run'"),
        ([*LEAST, "--keys", "keys"], "--keys is 'keys'"),
        ([*LEAST, "--log-level", "loud"], "known are: debug, info, warning, error"),
        ([*LEAST, "--instance-beat", "0"], "--instance-beat is 0"),
        ([*LEAST, "--max-calls", "0"], "--max-calls is 0"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_flag(words: list[str], says: str) -> None:
    parsed = arguments.parser().parse_args(words)

    with pytest.raises(SettingsError) as refused:
        arguments.to_settings(parsed)

    assert says in str(refused.value)


def test_the_packages_are_ours() -> None:
    assert main.foreign_packages() == []


def test_a_foreign_package_in_the_way_is_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "proto").mkdir()
    (tmp_path / "proto" / "__init__.py").touch()
    for name in [name for name in sys.modules if name == "proto" or name.startswith("proto.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)

    (complaint,) = main.foreign_packages()

    assert f"'proto' at {tmp_path / 'proto' / '__init__.py'}" in complaint


def test_a_log_file_is_the_owners_alone_and_is_appended_to(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log"
    for number in range(2):
        with logs.open_file(path) as stream:
            log = logs.to_stream(stream, "info")
            log.info("began", number=number)
            log.debug("unseen")

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [line.count('"event": "began"') for line in path.read_text().splitlines()] == [1, 1]


class FullPipe(io.StringIO):
    """What standard error is when whoever reads it has stopped."""

    def write(self, text: str) -> int:
        raise BlockingIOError(11, "write could not complete without blocking")

    def flush(self) -> None:
        raise BrokenPipeError


def test_a_log_that_nobody_reads_fails_nobody() -> None:
    logs.to_stream(FullPipe(), "info").info("a line that nobody reads")
