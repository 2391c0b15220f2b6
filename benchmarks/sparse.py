"""Steps with large embeddings: `python -m benchmarks.sparse [--rounds N]`.

Each step looks up 128 random rows of 32 numbers. Steadfast, on one device and on two, against
Keras' `fit` with the same optimizer, which has gradients in rows too: the time of a step, of those
after the first ones.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import STEADFAST, interleave, run_child, table

ROWS = (10_000, 1_000_000, 10_000_000)
COLUMNS = 32
BATCH = 128
OPTIMIZERS = {
    "sgd": ("optimizer=sgd", "optimizer.momentum=0", "optimizer.learning_rate=0.1"),
    "adam": ("optimizer=adam",),
    "lazy adam": ("optimizer=adam", "optimizer.lazy=true"),
}
_EXAMPLES = 100_000
_STEPS = {10_000: 3_000, 1_000_000: 1_000, 10_000_000: 500}  # less where each moves all rows
_FEW = 40
_PER_CALL = 20


def examples(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random rows [N, 1] and their labels [N]."""
    random = np.random.RandomState(0)
    ids = random.randint(0, rows, [_EXAMPLES, 1]).astype(np.int32)
    return ids, (ids[:, 0] % 2).astype(np.int64)


def model(input_shape: tuple[int, ...], num_classes: int, *, rows: int) -> Any:
    """Return a classifier of one looked-up row."""
    import tensorflow as tf

    layers = [tf.keras.layers.Embedding(rows, COLUMNS, name="embedding"), tf.keras.layers.Flatten()]
    inputs = tf.keras.Input(input_shape, dtype="int32")
    return tf.keras.Sequential([inputs, *layers, tf.keras.layers.Dense(num_classes)])


def steadfast_ms(rows: int, optimizer: str, steps: int, *options: str) -> float:
    """Return the milliseconds of a step of `python train.py`."""
    with tempfile.TemporaryDirectory() as runs:
        command = [
            "dataset=arrays", "dataset.data._target_=benchmarks.sparse.examples",
            f"+dataset.data.rows={rows}", "model._target_=benchmarks.sparse.model",
            f"+model.rows={rows}", f"batch.global_size={BATCH}", *OPTIMIZERS[optimizer],
            f"train.steps={steps}", "train.epochs=null", f"summary.every_steps={steps // 4}",
            "evaluate.every_epochs=null", "checkpoint.every_epochs=null", "checkpoint.memory=never",
            f"train.steps_per_loop={_PER_CALL}", "writers=[jsonl]", f"runs_dir={runs}", *options,
        ]  # fmt: skip
        run_child([sys.executable, "train.py", *command])
        (path,) = Path(runs).glob("*/metrics.jsonl")
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    rates = [line["examples_per_sec"] for line in lines if line["split"] == "train"][1:]
    return 1000 * BATCH * len(rates) / sum(rates)


def fit_ms(rows: int, optimizer: str, steps: int) -> float:
    """Return the milliseconds of a step of `fit`, in a separate process."""
    command = [sys.executable, "-m", "benchmarks.sparse", "--fit", optimizer]
    child = run_child([*command, "--rows", str(rows), "--steps", str(steps)])
    return float(child.output.splitlines()[-1])


def fit(rows: int, optimizer: str, steps: int) -> float:
    """Train by `fit`; return the milliseconds of a step."""
    import tensorflow as tf

    x, y = examples(rows)
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(10_000).repeat()
    data = data.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    network = model((1,), 2, rows=rows)
    legacy = tf.keras.optimizers.legacy
    network.compile(
        legacy.SGD(0.1) if optimizer == "sgd" else legacy.Adam(),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=_PER_CALL,
    )
    network.fit(data, steps_per_epoch=_PER_CALL, verbose=0)
    begin = time.perf_counter()
    network.fit(data, steps_per_epoch=steps, verbose=0)
    return 1000 * (time.perf_counter() - begin) / steps


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sparse", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=[*OPTIMIZERS])
    parser.add_argument("--steps", type=int, help="default: by the size of the table")
    parser.add_argument("--fit", choices=OPTIMIZERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.fit:
        print(fit(args.rows[0], args.fit, args.steps))
        return
    for optimizer in args.optimizers:
        for rows in args.rows:
            steps = args.steps or (_FEW if optimizer == "adam" else _STEPS.get(rows, 1_000))
            steps = max(1, steps // _PER_CALL) * _PER_CALL
            mirrored = ("strategy=mirrored", "strategy.virtual_devices=2")
            jobs = {
                STEADFAST: partial(steadfast_ms, rows, optimizer, steps, "strategy=one_device"),
                "Steadfast, mirrored 2": partial(steadfast_ms, rows, optimizer, steps, *mirrored),
            }
            if optimizer != "lazy adam":
                jobs["Keras fit"] = partial(fit_ms, rows, optimizer, steps)
            title = f"{optimizer}, {rows:,} rows: milliseconds a step, {args.rounds} rounds"
            print(table(title, "ms", interleave(jobs, args.rounds)), flush=True)


if __name__ == "__main__":
    main()
