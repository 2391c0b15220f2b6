"""What resuming costs, early and late in a training: `python -m benchmarks.resume [--rounds N]`.

The order of samples is a function of the step, so there is nothing to replay: resuming at step
1,000,000 should cost as much as at step 10. A run is trained for 10 steps; a copy of it gets a
checkpoint with a later step; both are continued.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.harness import data_file, first_step_at, interleave, read_ledger, run_child, table

EARLY = 10
LATE = 1_000_000
MORE = 10


def advance(run: Path, step: int) -> None:
    """Rewrite the newest checkpoint of a run as if it had been saved at `step`.

    Every tensor is copied, the object graph included; those that hold the run's step are changed.
    """
    import tensorflow as tf

    from trainer.runs.checkpoint_marker import commit

    directory = run / "checkpoints"
    reader = tf.train.load_checkpoint(str(directory / f"ckpt-{EARLY}"))
    tensors = {name: reader.get_tensor(name) for name in sorted(reader.get_variable_to_shape_map())}
    for name in ("step", "reported"):
        tensors[f"{name}/.ATTRIBUTES/VARIABLE_VALUE"] = np.int64(step)
    path = str(directory / f"ckpt-{step}")
    values = [tf.constant(value) for value in tensors.values()]
    tf.raw_ops.SaveV2(
        prefix=path,
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=values,
    )
    commit(directory, step, None)


def resume_secs(run: Path, step: int) -> float:
    """Continue a copy of a run; return the seconds from launch to the first step's end."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(run, Path(folder) / run.name))
        child = run_child(
            [sys.executable, "train.py", f"resume={copy}", f"train.steps={step + MORE}"]
        )
        return first_step_at(read_ledger(copy)) - child.started_at


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.resume", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--data",
        type=Path,
        help="an .npz file in the layout of Keras' mnist.npz; default: one at hand, else noise",
    )
    args = parser.parse_args()
    with data_file(args.data) as data, tempfile.TemporaryDirectory() as folder:
        command = [
            f"runs_dir={folder}/early",
            "model=tutorial_cnn",
            "dataset=mnist",
            f"dataset.path={data}",
            "strategy=one_device",
        ]
        run_child(
            [
                sys.executable,
                "train.py",
                *command,
                f"train.steps={EARLY}",
                "train.epochs=null",
                "evaluate.every_epochs=null",
            ]
        )
        (early,) = Path(folder, "early").iterdir()
        late = Path(shutil.copytree(early, Path(folder) / "late" / early.name))
        advance(late, LATE)
        contenders = {
            f"step {step:,}": partial(resume_secs, run, step)
            for run, step in ((early, EARLY), (late, LATE))
        }
        results = interleave(contenders, args.rounds)
    print(
        table(
            f"tutorial_cnn: seconds from launch to the first resumed step, {args.rounds} rounds",
            "s",
            results,
            f"step {EARLY:,}",
        )
    )


if __name__ == "__main__":
    main()
