"""Data that are read by index, and tables: clusters, kills, and what is done with the result."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.processes import final_variables, run
from tests.support.toy_sources import write_npy
from tests.support.training import assert_same_bits
from trainer.datasets.digits import digits

pytestmark = pytest.mark.slow

QUICK = [
    "train.steps=10",
    "batch.global_size=16",
    "checkpoint.every_steps=3",
    "checkpoint.every_epochs=null",
    "evaluate.every_steps=10",
    "evaluate.every_epochs=null",
    "restart.backoff_secs=0",
    "writers=[jsonl]",
    "train.steps_per_loop=1",
]


def killed(process: str) -> list[str]:
    """Return overrides that kill a process by SIGKILL at step 5, once."""
    name = f"kill_{process}_at_50"
    return [f"fault={name}", f"fault.{name}.at=5"]


def trained(directory: Path, *overrides: str) -> Path:
    """Train; return the run directory."""
    code, out, err = run(directory, *QUICK, *overrides)
    assert code == 0, out + err
    (run_dir,) = (directory / "runs").glob(f"{overrides[0].partition('=')[2]}-*")
    return run_dir


def command(directory: Path, *overrides: str) -> str:
    code, out, err = run(directory, *overrides)
    assert code == 0, out + err
    return out


def table_of(run_dir: Path) -> list[dict[str, str]]:
    (file,) = (run_dir / "predictions").glob("*.csv")
    with file.open() as text:
        return list(csv.DictReader(text))


def probabilities(rows: list[dict[str, str]]) -> np.ndarray:
    names = [name for name in rows[0] if name.startswith("probability_")]
    return np.array([[row[name] for name in names] for row in rows], np.float32)


def test_two_processes_one_of_them_killed_train_the_same_samples(tmp_path: Path) -> None:
    batch = digits().test.fetch(tf.range(100))
    write_npy(tmp_path / "data", batch["features"].numpy(), batch["label"].numpy())
    options = ["dataset=npy", f"dataset.path={tmp_path / 'data'}", "model=softmax"]
    options += ["batch.shards=2", "devices.threads=1"]
    alone = trained(tmp_path, "name=alone", *options)
    both = trained(tmp_path, "name=both", *options, "strategy=multi_worker", *killed("worker_1"))
    assert '"restart"' in (both / "ledger.jsonl").read_text()
    assert_same_bits(final_variables(alone), final_variables(both))
    line = command(tmp_path, "mode=predict", f"resume={both}", "strategy=one_device")
    assert "Predictions with step 10" in line
    command(tmp_path, "mode=evaluate", f"resume={both}", "strategy=one_device")
    rows = table_of(both)
    assert {row["id"] for row in rows} == {str(number) for number in range(len(rows))}
    assert (both / "evaluation-10.json").exists()
    command(tmp_path, "mode=export", f"resume={both}")
    assert (both / "export" / "model-10" / "saved_model").is_dir()


def test_table_keeps_its_fit_when_it_continues_predicts_and_is_exported(tmp_path: Path) -> None:
    random = np.random.RandomState(0)
    ages = random.randint(18, 80, 120)
    cities = random.choice(["Bern", "Oslo", "Rome"], 120)
    lines = [
        f"{age},{city},{'old' if age > 40 else 'young'}"
        for age, city in zip(ages, cities, strict=True)
    ]
    train = tmp_path / "train.csv"
    train.write_text("\n".join(["age,city,label", *lines]))
    (tmp_path / "new.csv").write_text("age,city\n25,Bern\n,Paris\n70,\n")
    options = ["dataset=table", f"dataset.path={train}", "model=mlp"]
    run_dir = trained(tmp_path, "name=table", *options, *killed("chief"))
    kept = (run_dir / "dataset.json").read_bytes()
    train.write_text("\n".join(["age,city,label", *(f"9{line}" for line in lines)]))  # other data
    new = f"dataset.test_path={tmp_path / 'new.csv'}"
    command(tmp_path, "mode=predict", f"resume={run_dir}", new)
    rows = table_of(run_dir)
    assert rows[0]["predicted_name"] in ("old", "young")
    assert "label" not in rows[0]
    command(tmp_path, "mode=export", f"resume={run_dir}")
    export = run_dir / "export" / "model-10"
    assert (run_dir / "dataset.json").read_bytes() == (export / "dataset.json").read_bytes() == kept
    served = tf.saved_model.load(str(export / "saved_model")).signatures["serving_columns"](
        age=tf.constant([25, np.nan, 70], tf.float64), city=tf.constant(["Bern", "Paris", " NA"])
    )
    assert np.allclose(served["probabilities"], probabilities(rows), rtol=0, atol=1e-6)
    assert "serving_columns" in (export / "MODEL_CARD.md").read_text()
