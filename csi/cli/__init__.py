"""The command line: `waymark serve`, `waymark history`, `waymark points`."""
