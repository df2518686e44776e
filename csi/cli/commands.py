"""The commands of `waymark`, and how their errors are told."""

from __future__ import annotations

import sys

from csi import assembly
from csi.cli import arguments, history, serve
from csi.clusters import ConfigError
from csi.server import EndpointError
from csi.settings import SettingsError


def run(words: list[str]) -> int:
    """Run the command that the words ask for; the exit code."""
    asked = arguments.parser().parse_args(words)
    try:
        if asked.command == "serve":
            serve.serve(arguments.to_settings(asked), assembly.open_driver)
        elif asked.command == "history":
            print(history.fetch(asked.endpoint, asked.volume_id, asked.output))
        else:
            print("\n".join(assembly.crash_points()))
    except (SettingsError, ConfigError, EndpointError) as error:
        print(f"waymark {asked.command}: {error}", file=sys.stderr)
        return 2
    except history.HistoryError as error:
        print(f"waymark {asked.command}: {error}", file=sys.stderr)
        return 1
    return 0
