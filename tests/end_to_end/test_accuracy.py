"""Accuracy of asynchronous steps on digits, and of the multi-worker tutorial's recipe on MNIST."""

import os
from pathlib import Path

import pytest

from tests.support.processes import ROOT, log, only_run, succeed

pytestmark = pytest.mark.long

MNIST = Path(os.environ.get("STEADFAST_DATA", ROOT.parent / "shared" / "data")) / "mnist.npz"
PUBLISHED = [0.8218, 0.9277, 0.9470]  # with 2 workers, after each of 3 epochs of 70 steps


@pytest.mark.skipif(not MNIST.is_file(), reason="no mnist.npz; name its folder in STEADFAST_DATA")
def test_tutorial_recipe_reaches_the_published_accuracy_with_two_workers(tmp_path):
    options = ["experiment=mnist_tutorial", f"dataset.path={MNIST}", "strategy=multi_worker"]
    measured = {}
    for compress in ("none", "float16"):
        (tmp_path / compress).mkdir()
        more = [f"strategy.compress={compress}", "summary.every_steps=70", "seed=1"]
        succeed(tmp_path / compress, *options, *more)
        lines = log(only_run(tmp_path / compress))
        measured[compress] = [line["accuracy"] for line in lines if line["split"] == "train"]
    assert measured["none"] == pytest.approx(PUBLISHED, abs=0.03)
    assert measured["float16"] == pytest.approx(measured["none"], abs=0.01)
