"""What saving costs the training: `python -m benchmarks.checkpoint [--model ...] [--rounds N] [--every N]`.

One process trains; every so many steps it saves, by turns not at all, synchronously and in the background. The time until the next
turn is measured: a save in the background has to be through by then. What follows another process's good or bad minute falls on all.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.harness import BATCH_SIZES, LEARNING_RATES, data_file, interleave, table

NOTHING, BLOCKING, BACKGROUND = "no saving", "synchronous", "in the background"


@contextlib.contextmanager
def ways(model: str, optimizer: str, data: Path, every: int) -> Iterator[dict[str, Callable[[], float]]]:
    """Builds the engine's loop and what saves; gives a function for each way that gives the milliseconds a step."""
    import tensorflow as tf

    from trainer import build, cli
    from trainer.channel import Channel
    from trainer.checkpoint import Checkpoints
    from trainer.policies import Newest

    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            f"model={model}", "dataset=mnist", f"dataset.path={data}", f"optimizer={optimizer}", "train.steps=1000000",
            f"optimizer.learning_rate={LEARNING_RATES[optimizer]}", f"batch.global_size={BATCH_SIZES[model]}", f"runs_dir={folder}",
        ]  # fmt: skip
        engine = build.engine(cli.compose(overrides), Path(folder), Channel(lambda message: None))
        made = {
            way: Checkpoints(Path(folder, way), engine.state.trackables(), [Newest(2)], background=way == BACKGROUND)
            for way in (BLOCKING, BACKGROUND)
        }
        opened = engine.loop.feed.start(0, engine.state.guard.left_out.numpy())

        def measured(way: str) -> float:
            began = time.perf_counter()
            if way in made:
                made[way].save(int(engine.state.step.numpy()), None)
            engine.loop.run(opened, tf.constant(every, tf.int64))[0].numpy()
            if way in made:
                made[way].wait()
            return 1000 * (time.perf_counter() - began) / every

        measured(NOTHING)  # the first call compiles
        yield {way: (lambda way=way: measured(way)) for way in (NOTHING, BLOCKING, BACKGROUND)}
        print(f"A checkpoint has {sum(file.stat().st_size for file in Path(folder, BLOCKING).glob('ckpt-*')) / 2e6:.1f} MB.")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint", description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=BATCH_SIZES, default="tutorial_cnn")
    parser.add_argument("--optimizer", choices=LEARNING_RATES, default="adam")
    parser.add_argument("--every", type=int, default=50, help="steps between two saves")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--data", type=Path, help="an .npz file in the layout of Keras' mnist.npz; default: one at hand, else noise")
    args = parser.parse_args()
    os.environ |= {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    with data_file(args.data) as data, ways(args.model, args.optimizer, data, args.every) as contenders:
        results = interleave(contenders, args.rounds)
    title = f"{args.model}, {args.optimizer}, a save every {args.every} steps: milliseconds a step, {args.rounds} rounds"
    print(table(title, "ms", results, NOTHING))


if __name__ == "__main__":
    main()
