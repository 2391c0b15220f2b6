"""How long a lost worker holds a training up: `python -m benchmarks.recovery [--rounds N]`.

Two workers train on this machine. One is killed; the time from its SIGKILL to the end of the first
new step is compared with a cold start of the same command, from its launch to the end of the first
step. Both are measured in the same run, so that other load on the machine affects both.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import (
    BATCH_SIZES,
    LEARNING_RATES,
    data_file,
    first_steps_at,
    interleave,
    read_ledger,
    run_child,
    table,
)

KILLED_AT = 40
STEPS = 60
COLD = "cold start"
RECOVERY = "recovery"


def measure(model: str, data: Path, backoff_secs: float) -> tuple[float, float]:
    """Train with a second worker that is killed once; return seconds of cold start and recovery."""
    with tempfile.TemporaryDirectory() as runs:
        overrides = [
            f"runs_dir={runs}",
            "strategy=multi_worker",
            f"model={model}",
            "dataset=mnist",
            f"dataset.path={data}",
            "optimizer=rmsprop",
            f"optimizer.learning_rate={LEARNING_RATES['rmsprop']}",
            f"batch.global_size={2 * BATCH_SIZES[model]}",
            f"train.steps={STEPS}",
            "train.steps_per_loop=1",
            "evaluate.every_epochs=null",
            "checkpoint=every_50_steps",
            "checkpoint.every_steps=20",
            f"restart.backoff_secs={backoff_secs}",
            f"+fault.kill={{action:kill,process:worker-1,phase:step,at:{KILLED_AT}}}",
        ]  # fmt: skip
        child = run_child([sys.executable, "train.py", *overrides])
        (run,) = Path(runs).iterdir()
        killed_at = json.loads((run / "faults" / "kill.json").read_text())["at"]
        cold, again = first_steps_at(read_ledger(run))
    return cold - child.started_at, again - killed_at


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recovery", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--model", choices=BATCH_SIZES, default="tutorial_cnn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--backoff-secs",
        type=float,
        default=1.0,
        help="the pause before the restart, which is part of the recovery",
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="an .npz file in the layout of Keras' mnist.npz; default: one at hand, else noise",
    )
    args = parser.parse_args()
    with data_file(args.data) as data:
        pairs = interleave(
            {"run": lambda: measure(args.model, data, args.backoff_secs)}, args.rounds
        )["run"]
    secs = {COLD: [cold for cold, _ in pairs], RECOVERY: [recovery for _, recovery in pairs]}
    print(
        table(
            f"{args.model}, two workers: seconds to the first step's end, {args.rounds} rounds",
            "s",
            secs,
            COLD,
        )
    )


if __name__ == "__main__":
    main()
