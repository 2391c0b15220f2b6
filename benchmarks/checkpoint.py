"""Cost of checkpoints: `python -m benchmarks.checkpoint [--model ...] [--rounds N] [--every N]`.

One process trains and saves every so many steps, in turn not at all, synchronously and in the
background; in a fourth turn it keeps its state in memory, as often as a run does. The time until
the next turn is measured: a save in the background must be complete by then. Turns are interleaved,
so that other load on the machine affects all alike.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import BATCH_SIZES, LEARNING_RATES, data_file, interleave, table

if TYPE_CHECKING:
    from trainer.engine.engine import Engine

NOTHING = "no saving"
BLOCKING = "synchronous"
BACKGROUND = "in the background"
MEMORY = "no saving, but in memory"


@contextlib.contextmanager
def ways(
    model: str, optimizer: str, data: Path, every: int
) -> Iterator[dict[str, Callable[[], float]]]:
    """Build the engine and its checkpointers; yield name -> function that returns ms a step."""
    import tensorflow as tf

    from trainer.engine.checkpoints.checkpointer import Checkpointer
    from trainer.engine.checkpoints.memory_snapshots import MemorySnapshots
    from trainer.runs.checkpoint_retention import KeepNewest
    from trainer.runs.state_memory import MemoryFiles, Position, StateMemory

    with tempfile.TemporaryDirectory() as folder:
        engine = _build_engine(model, optimizer, data, Path(folder))
        checkpointers = {
            way: Checkpointer(
                Path(folder, way),
                engine.state.trackables(),
                [KeepNewest(2)],
                background=None if way == BACKGROUND else False,
            )
            for way in (BLOCKING, BACKGROUND)
        }
        memory = StateMemory(os.memfd_create("benchmark"))
        snapshots = MemorySnapshots(
            checkpointers[BACKGROUND].reader,
            MemoryFiles(memory, {"worker-0": memory}, list),
            engine.process_group,
        )
        iterator = engine.loop.feed.open(0, engine.state.divergence_monitor.left_out.numpy())

        def measured(way: str) -> float:
            began = time.perf_counter()
            if way in checkpointers:
                step = int(engine.state.step.numpy())
                hold = partial(snapshots.hold, Position(step, step), None)
                checkpointers[way].save(step, None, hold)
            engine.loop.run(iterator, tf.constant(every, tf.int64))[0].numpy()
            if way == MEMORY:
                step = int(engine.state.step.numpy())
                snapshots.keep(Position(step, step))
            if way in checkpointers:
                checkpointers[way].wait()
            return 1000 * (time.perf_counter() - began) / every

        measured(NOTHING)  # the first call compiles
        names = (NOTHING, BLOCKING, BACKGROUND, MEMORY)
        yield {way: (lambda way=way: measured(way)) for way in names}
        # Two checkpoints are kept.
        size = sum(file.stat().st_size for file in Path(folder, BLOCKING).glob("ckpt-*")) / 2
        print(f"A checkpoint has {size / 1e6:.1f} MB.")


def _build_engine(model: str, optimizer: str, data: Path, folder: Path) -> Engine:
    from trainer.cli.compose import compose
    from trainer.cluster.messages import Channel
    from trainer.worker.building import build

    experiment = compose(
        [
            f"model={model}",
            "dataset=mnist",
            f"dataset.path={data}",
            f"optimizer={optimizer}",
            f"optimizer.learning_rate={LEARNING_RATES[optimizer]}",
            f"batch.global_size={BATCH_SIZES[model]}",
            "train.steps=1000000",
            f"runs_dir={folder}",
        ]
    )
    return build.engine(experiment, folder, Channel(lambda message: None))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.checkpoint", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--model", choices=BATCH_SIZES, default="tutorial_cnn")
    parser.add_argument("--optimizer", choices=LEARNING_RATES, default="adam")
    parser.add_argument("--every", type=int, default=50, help="steps between two saves")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument(
        "--data",
        type=Path,
        help="an .npz file in the layout of Keras' mnist.npz; default: one at hand, else noise",
    )
    args = parser.parse_args()
    os.environ |= {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    with (
        data_file(args.data) as data,
        ways(args.model, args.optimizer, data, args.every) as contenders,
    ):
        results = interleave(contenders, args.rounds)
    title = (
        f"{args.model}, {args.optimizer}, a save every {args.every} steps: "
        f"milliseconds a step, {args.rounds} rounds"
    )
    print(table(title, "ms", results, NOTHING))


if __name__ == "__main__":
    main()
