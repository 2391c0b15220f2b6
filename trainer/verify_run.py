"""One run of mode=verify: `python -m trainer.verify_run`. It is told over its standard input what to run. No TensorFlow."""

from __future__ import annotations

import json
import os
import sys
import threading

from trainer import config, launch
from trainer.errors import ConfigError
from trainer.exitcodes import CRASHED, WRONG_INPUT


def main() -> None:
    """Entry point of the process."""
    if (directory := os.getcwd()) not in sys.path:
        sys.path.append(directory)
    assignment = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    try:
        sys.exit(launch.run(config.restore(assignment["experiment"]), assignment["overrides"], assignment["config_dir"]))
    except ConfigError as error:
        for line in error.problems:
            print(f"error: {line}", file=sys.stderr)
        sys.exit(WRONG_INPUT)


def _end_with_the_parent() -> None:
    # Not sys.stdin: its lock would be held at the interpreter's shutdown.
    os.read(0, 1)
    os._exit(CRASHED)


if __name__ == "__main__":
    main()
