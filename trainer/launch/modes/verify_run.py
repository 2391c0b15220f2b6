"""One run of mode=verify: `python -m trainer.launch.modes.verify_run`.

Its assignment is the first line of its standard input.
"""

from __future__ import annotations

import json
import os
import sys
import threading

from trainer.cli import standard_streams
from trainer.cluster import environment
from trainer.cluster.signals import survive_saves
from trainer.config import loading
from trainer.errors import CRASHED, WRONG_INPUT, ConfigError, StorageError
from trainer.launch import launcher
from trainer.launch.resolved_run import Command
from trainer.text import printable


def main() -> None:
    """Run the experiment of the assignment, and exit with its code."""
    standard_streams.prepare()
    survive_saves()
    environment.add_working_directory()
    assignment = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    command = Command(
        loading.restore(assignment["experiment"]),
        assignment["overrides"],
        assignment["config_dir"],
    )
    try:
        sys.exit(launcher.run(command))
    except (ConfigError, StorageError) as error:
        for line in str(error).splitlines():
            print(f"error: {printable(line)}", file=sys.stderr)
        sys.exit(CRASHED if isinstance(error, StorageError) else WRONG_INPUT)


def _end_with_parent() -> None:
    # The parent writes no more, so this returns when it has ended. Not sys.stdin: its lock would be
    # held at the interpreter's shutdown.
    os.read(0, 1)
    os._exit(CRASHED)


if __name__ == "__main__":
    main()
