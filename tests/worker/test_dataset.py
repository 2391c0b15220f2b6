"""What a dataset learns and a run keeps, and the split that selects instead of the test split."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.processes import log
from tests.support.toy_sources import everything
from tests.support.training import assert_same_bits, short_engine, variables
from trainer.cli.compose import compose
from trainer.cluster.messages import Channel
from trainer.datasets.mixture import mixture
from trainer.datasets.splits.arrays import ArraySplit
from trainer.errors import ConfigError
from trainer.files import write_json
from trainer.runs.directory import fitted_file
from trainer.runs.recorded_metrics import read_evaluations
from trainer.runs.status import run_status
from trainer.worker.dataset import Fitted, add_validation, fit_or_restore
from trainer.worker.run import Run

RUN = ("model=softmax", "++dataset.validation=0.3", "evaluate.every_steps=3")
BEST = ("checkpoint.best.metric=loss", "checkpoint.every_steps=3", "optimizer.learning_rate=0.5")
"""The best checkpoint is an earlier one than the last."""


def arrays(count, **attributes):
    split = ArraySplit(np.arange(count)[:, None], np.arange(count) % 3)
    shape = {"input_shape": (1,), "num_classes": 3}
    return SimpleNamespace(train=split, test=split, **shape, **attributes)


def divided(dataset, fraction=0.3):
    """Return the features of both splits."""
    add_validation(dataset, fraction, lambda path: dataset)
    both = [everything(split)["features"] for split in (dataset.train, dataset.validation)]
    first, second = (np.reshape(features, -1).tolist() for features in both)
    return first, second


def test_fraction_divides_the_training_split_and_later_examples_move_none():
    dataset = arrays(200)
    train, validation = divided(dataset)
    assert sorted(train + validation) == list(range(200))
    assert train == sorted(train)
    assert 40 < len(validation) < 80
    assert dataset.train.labels.tolist() == [number % 3 for number in train]
    assert dataset.train.in_memory
    _, more = divided(arrays(300))
    assert [number for number in more if number < 200] == validation


def test_examples_with_hashes_stay_in_their_split_when_others_are_inserted():
    hashes = np.random.default_rng(0).random(200)
    few, many = arrays(100), arrays(200)
    few.train.hashes, many.train.hashes = hashes[::2], hashes
    _, validation = divided(few)
    _, more = divided(many)
    assert [number // 2 for number in more if number % 2 == 0] == validation


def test_mixture_keeps_its_shares_and_its_parts():
    def mixed(first, second):
        sources = {"a": arrays(first, num_draws=0), "b": arrays(second, num_draws=0)}
        for source in sources.values():
            source.transform = lambda batch, draws: batch
        return SimpleNamespace(**vars(mixture(sources=sources)))

    few, many = mixed(60, 90), mixed(80, 90)
    train, validation = divided(few)
    assert [part.share for part in few.train.parts] == [2, 3]
    assert sum(part.size for part in few.train.parts) == len(train)
    sizes = [part.size for part in few.validation.parts]
    _, more = divided(many)
    start = many.validation.parts[0].size
    assert more[start:] == validation[sizes[0] :]
    assert [number for number in more[:start] if number < 60] == validation[: sizes[0]]


@pytest.mark.parametrize(
    ("fraction", "change", "problem"),
    [
        (1e-9, {}, "leaves none of the 9 training examples in the validation split"),
        (0.3, {"train": SimpleNamespace(num_examples=9)}, "the training split is a stream"),
    ],
)
def test_split_that_cannot_be_divided_is_refused(fraction, change, problem):
    dataset = arrays(9)
    vars(dataset).update(change)
    with pytest.raises(ConfigError, match=problem):
        add_validation(dataset, fraction, lambda path: dataset)


def dataset_of(options, run_dir=Path("nowhere")):
    return Run(compose(options), run_dir, Channel(lambda message: None)).dataset


def test_files_of_their_own_are_read_as_the_run_was_fitted(tmp_path):
    for name, rows in (("train", range(50)), ("held_out", range(1000, 1010))):
        lines = ["x,label", *(f"{row},{'ab'[row % 2]}" for row in rows)]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
    path = f"dataset.path={tmp_path}/train.csv"
    options = ["dataset=table", path, f"++dataset.validation={tmp_path}/held_out.csv"]
    dataset = dataset_of(options)
    assert dataset.validation.num_examples == 10
    assert (
        everything(dataset.validation)["features"].min()
        > everything(dataset.train)["features"].max()
    )
    assert dataset.train.num_examples + dataset.test.num_examples == 50
    (tmp_path / "held_out.csv").write_text("x,label\n1,c\n")
    with pytest.raises(ConfigError, match="label"):
        everything(dataset_of(options).validation)


def finished(run_dir, *overrides):
    trained = short_engine(run_dir, *RUN, *overrides)
    trained.train(lambda: False)
    return trained


@pytest.mark.slow
def test_run_selects_by_validation_and_tests_the_last_and_the_best_weights(tmp_path):
    result = finished(tmp_path, *BEST).result()
    lines = log(tmp_path)
    steps = {
        split: [line["step"] for line in lines if line["split"] == split]
        for split in ("validation", "test")
    }
    best = result["best"]["step"]
    assert steps["validation"] == [3, 6, 8]
    assert steps["test"] == [8, best]
    assert best < 8
    figures = {
        (line["split"], line["step"]): {name: line[name] for name in ("loss", "accuracy")}
        for line in lines
    }
    assert result["metrics"] == figures["test", 8]
    assert result["validation"] == figures["validation", 8]
    assert result["best"]["metrics"] == figures["test", best]
    assert result["best"]["validation"] == figures["validation", best]
    losses = {step: figures["validation", step]["loss"] for step in (3, 6, 8)}
    assert losses[best] == min(losses.values())
    assert [step for step, _ in read_evaluations(tmp_path)] == [3, 6, 8]
    (tmp_path / "result.json").write_text(json.dumps({**result, "train": {"steps": 8}}))
    (tmp_path / "config.yaml").write_text("{}")
    status = run_status(tmp_path)
    assert (status.split, status.metrics, status.test) == (
        "validation", result["validation"], result["metrics"],
    )  # fmt: skip


@pytest.mark.slow
def test_run_stopped_while_it_tests_the_best_weights_ends_with_the_same_bits(tmp_path):
    straight = finished(tmp_path / "straight", *BEST)
    kept = variables(straight)

    def is_testing_the_best(trained):
        return len(trained.test_metrics) == 1

    stopped = short_engine(tmp_path / "stopped", *RUN, *BEST)
    assert not stopped.train(lambda: is_testing_the_best(stopped))
    again = finished(tmp_path / "stopped", *BEST)
    assert again.result()["metrics"] == straight.result()["metrics"]
    assert again.result()["best"] == straight.result()["best"]
    assert log(tmp_path / "stopped") == log(tmp_path / "straight")
    assert_same_bits(variables(again), kept)


class Mean:
    """Learns one number."""

    def __init__(self, value):
        self.value = value
        self.calls = []

    def fit(self):
        self.calls.append("fit")
        return self.value

    def restore(self, fitted):
        self.calls.append(f"restore {fitted}")

    def describe(self):
        return [f"mean {self.value}"]


def fit(dataset, run_dir, chiefs=str, *, fits=True):
    group = SimpleNamespace(broadcast_text_from_chief=chiefs)
    fit_or_restore(dataset, run_dir, group, is_chief=True, fits=fits)


def test_first_fit_is_kept_and_restored(tmp_path):
    first = Mean("7")
    assert isinstance(first, Fitted)
    fit(first, tmp_path)
    assert first.calls == ["fit"]
    kept = fitted_file(tmp_path).read_bytes()
    for fits in (True, False):
        second = Mean("8")
        fit(second, tmp_path, fits=fits)
        assert (second.calls, fitted_file(tmp_path).read_bytes()) == (["restore 7"], kept)


def test_changed_fit_is_refused(tmp_path):
    write_json(fitted_file(tmp_path), {"fitted": "7"})
    fitted_file(tmp_path).write_text(fitted_file(tmp_path).read_text().replace("7", "6", 1))
    with pytest.raises(ConfigError, match=r"dataset.json cannot be read: its content has changed"):
        fit(Mean("8"), tmp_path)


def test_all_processes_use_the_fit_of_the_chief(tmp_path):
    data = Mean("7")
    fit(data, tmp_path, lambda text: "chief's")
    assert data.calls == ["fit", "restore chief's"]
