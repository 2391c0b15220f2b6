"""One worker process: `python -m trainer.worker <run dir> --channel <descriptor>`. Started by `trainer.supervisor`.

Reads the effective configuration from its standard input, builds the engine, trains. It lives no longer than its
supervisor: when the pipe on its standard input closes, also because the supervisor was killed, it is gone at once.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType

from trainer import cluster, config
from trainer.channel import Channel, to_pipe
from trainer.config import Experiment
from trainer.errors import CheckpointError, ConfigError, NonFiniteError
from trainer.exitcodes import CRASHED, DONE, RESTARTABLE, WRONG_INPUT


class StopRequest:
    """Remembers the first SIGINT or SIGTERM; a second one leaves at once."""

    def __init__(self) -> None:
        self.signal = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def __call__(self) -> bool:
        """Says whether a stop was requested."""
        return self.signal != 0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            os._exit(128 + number)
        self.signal = number


def run(experiment: Experiment, run_dir: Path, channel: Channel, stop: StopRequest, began: float) -> int:
    """Runs one attempt and reports how it ended.

    Args:
        experiment: the effective configuration.
        run_dir: the run directory.
        channel: tells the user.
        stop: whether a stop was requested.
        began: Unix time when the attempt was started.

    Returns:
        The process's exit code.
    """
    cluster.prepare_environment()
    # Only now: TensorFlow reads its environment when it is imported.
    import tensorflow as tf

    from trainer import modes

    try:
        channel.phase("start", 0)
        return DONE if modes.run(experiment, run_dir, channel, stop, began) else 128 + stop.signal
    except ConfigError as error:
        channel.problem(list(error.problems))
        return WRONG_INPUT
    except (CheckpointError, NonFiniteError) as error:
        channel.crash(str(error))
        return CRASHED
    except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError) as error:
        channel.line(f"warning: {str(error).strip().splitlines()[0]}")
        return RESTARTABLE
    except tf.errors.InvalidArgumentError as error:
        # How an error that a dataset raises inside TensorFlow's pipeline comes out again.
        if told := re.search(r"^ValueError: (.+)$", str(error), re.MULTILINE):
            channel.problem([f"dataset: {told[1]}"])
            return WRONG_INPUT
        return _crashed(error, channel)
    except Exception as error:
        return _crashed(error, channel)


def _crashed(error: Exception, channel: Channel) -> int:
    logging.getLogger(__name__).error("the worker crashed", exc_info=error)
    channel.crash(users_traceback(error))
    return CRASHED


def users_traceback(error: BaseException) -> str:
    """Gives the traceback without the frames of this package, TensorFlow and Keras, unless there are no others."""
    own = str(Path(__file__).resolve().parent)
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith((own, "<")) and "site-packages" not in frame.filename]
    theirs = [frame for frame in theirs if "__autograph_generated_file" not in frame.filename and "importlib" not in frame.filename]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(theirs or frames[-1:])]
    return "".join([*lines, *traceback.format_exception_only(error)]).rstrip()


def _leave_with_parent() -> None:
    """Exits when standard input reaches its end: the supervisor is gone, however it went."""

    def watch() -> None:
        # The descriptor, not sys.stdin: its lock would be held at interpreter exit.
        while os.read(0, 1):
            pass
        os._exit(CRASHED)

    threading.Thread(target=watch, daemon=True, name="leave-with-parent").start()


def main() -> None:
    """Entry point of the process."""
    began = time.time()
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--channel", type=int, required=True)
    arguments = parser.parse_args()
    stop = StopRequest()
    with os.fdopen(os.dup(0), "rb", buffering=0) as pipe:
        experiment = config.restore(json.loads(pipe.readline()))
    _leave_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    if (directory := os.getcwd()) not in sys.path:
        sys.path.insert(0, directory)
    code = run(experiment, arguments.run_dir, Channel(to_pipe(arguments.channel)), stop, began)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: TensorFlow's threads and tf.data's can make an orderly interpreter shutdown hang or crash.
    os._exit(code)


if __name__ == "__main__":
    main()
