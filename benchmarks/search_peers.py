"""The searches of others, each as its own users write it, with Keras' `fit`.

    python -m benchmarks.search_peers ray|optuna --epochs N

They train two points at a time, with one core each, and print a line of JSON: `steps`, `best` and
`accuracy`, as in `benchmarks.search.Result`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.search import BATCH_SIZE, GRID, REDUCTION, SMALLEST_FRACTION, VALIDATION

POINTS = list(itertools.product(*GRID.values()))


def train(values: Sequence[str], epochs: int, report: Callable[[int, float], bool]) -> list[float]:
    """Train the model of a point; return its accuracy after each epoch.

    Args:
        report: gets each epoch, from 1, and the accuracy; returns whether to stop.
    """
    # Here: the process that decides needs no TensorFlow.
    import numpy as np
    import tensorflow as tf

    from trainer.datasets.digits import digits
    from trainer.models.cnn import cnn
    from trainer.worker.dataset import add_validation

    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(0)
    data = digits()
    add_validation(data, VALIDATION, lambda path: data)

    def arrays(split: Any) -> tuple[np.ndarray, np.ndarray]:
        batch = split.fetch(np.arange(split.num_examples))
        images = np.asarray(batch["features"]) / np.float32(data.max_value)
        return images, np.asarray(batch["label"], np.int64)

    class Report(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
            if report(epoch + 1, logs["val_accuracy"]):
                self.model.stop_training = True

    rate, momentum, dropout = map(float, values)
    model = cnn((8, 8, 1), 10, dropout=dropout)
    images, labels = arrays(data.train)
    model.compile(
        tf.keras.optimizers.SGD(rate, momentum),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=math.ceil(len(labels) / BATCH_SIZE),
    )
    history = model.fit(
        images,
        labels,
        BATCH_SIZE,
        epochs,
        verbose=0,
        callbacks=[Report()],
        validation_data=arrays(data.validation),
    )
    return [float(accuracy) for accuracy in history.history["val_accuracy"]]


def run_ray(epochs: int, folder: str) -> list[tuple[Sequence[str], int, float]]:
    """Run Ray Tune's ASHA; return values, epochs and accuracy of each point."""
    import ray
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    def trainable(config: dict[str, Any]) -> None:
        def report(epoch: int, accuracy: float) -> bool:
            tune.report({"accuracy": accuracy})
            return False

        train(config["point"], epochs, report)

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    scheduler = ASHAScheduler(
        max_t=epochs, grace_period=max(1, epochs // SMALLEST_FRACTION), reduction_factor=REDUCTION
    )
    results = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1}),
        param_space={"point": tune.grid_search(POINTS)},
        tune_config=tune.TuneConfig(metric="accuracy", mode="max", scheduler=scheduler),
        run_config=tune.RunConfig(storage_path=folder, verbose=0),
    ).fit()
    assert not results.errors, results.errors
    ray.shutdown()
    return [
        (
            result.config["point"],
            result.metrics["training_iteration"],
            result.metrics["accuracy"],
        )
        for result in results
    ]


def run_optuna(epochs: int, folder: str) -> list[tuple[Sequence[str], int, float]]:
    """Run Optuna's Hyperband in two processes; return values, epochs and accuracy of each point."""
    study = _study(epochs, folder)
    for number in range(len(POINTS)):
        study.enqueue_trial({"point": number})
    context = multiprocessing.get_context("spawn")
    cores = sorted(os.sched_getaffinity(0))
    workers = [
        context.Process(target=_optuna_worker, args=(epochs, folder, core)) for core in cores[:2]
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    trials = study.get_trials()[: len(POINTS)]
    return [
        (POINTS[trial.params["point"]], last, trial.intermediate_values[last])
        for trial in trials
        for last in [max(trial.intermediate_values)]
    ]


def _study(epochs: int, folder: str) -> Any:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(Path(folder) / "journal"))),
        study_name="search",
        direction="maximize",
        pruner=optuna.pruners.HyperbandPruner(
            max(1, epochs // SMALLEST_FRACTION), epochs, REDUCTION
        ),
        load_if_exists=True,
    )


def _optuna_worker(epochs: int, folder: str, core: int) -> None:
    import optuna

    os.sched_setaffinity(0, {core})
    study = _study(epochs, folder)
    # Trials after the enqueued ones are not of the grid.
    while (trial := study.ask()).number < len(POINTS):
        number = trial.suggest_categorical("point", list(range(len(POINTS))))

        def report(epoch: int, accuracy: float, trial: optuna.Trial = trial) -> bool:
            trial.report(accuracy, epoch)
            return bool(trial.should_prune())

        accuracies = train(POINTS[number], epochs, report)
        if len(accuracies) < epochs:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(trial, accuracies[-1])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search_peers")
    parser.add_argument("name", choices=("ray", "optuna"))
    parser.add_argument("--epochs", type=int, required=True)
    args = parser.parse_args()
    run = {"ray": run_ray, "optuna": run_optuna}[args.name]
    with tempfile.TemporaryDirectory() as folder:
        points = run(args.epochs, folder)
    assert len(points) == len(POINTS)
    best, _, accuracy = max(points, key=lambda point: point[2])
    steps_per_epoch = math.ceil(_num_examples() / BATCH_SIZE)
    steps = sum(epochs for _, epochs, _ in points) * steps_per_epoch
    print(json.dumps({"steps": steps, "best": best, "accuracy": accuracy}))


def _num_examples() -> int:
    from trainer.datasets.digits import digits
    from trainer.worker.dataset import add_validation

    data = digits()
    add_validation(data, VALIDATION, lambda path: data)
    return int(data.train.num_examples)


if __name__ == "__main__":
    main()
