"""Published weights are in the cache before a run exists, or the command ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import run_here
from trainer import published_weights
from trainer.cli.compose import compose
from trainer.launch import model_weights

NETWORK = ["model=keras_application", "model.name=MobileNet", "model.weights=imagenet"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setattr(published_weights, "_HOST", "http://127.0.0.1:9/")
    return tmp_path / "models"


def test_missing_weights_end_the_command_before_a_run_exists(tmp_path: Path, cache: Path) -> None:
    outcome = run_here(*NETWORK, f"runs_dir={tmp_path}/runs")
    assert outcome.code == 2
    (line,) = outcome.err.splitlines()
    assert line.startswith("error: model.weights (imagenet) is not in Keras' cache, and it cannot")
    assert line.endswith(f"put it here as {cache}/mobilenet_1_0_224_tf_no_top.h5")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("overrides", "file"),
    [
        (NETWORK, "mobilenet_1_0_224_tf_no_top.h5"),
        ([*NETWORK, "dataset.image_size=[160,160]"], "mobilenet_1_0_160_tf_no_top.h5"),
        (
            ["experiment=cifar10_mobilenet", "model.weights=imagenet"],
            "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224.h5",
        ),
        (["experiment=cifar10_mobilenet"], None),
    ],
)
def test_weights_are_those_that_the_model_asks_for(
    monkeypatch: pytest.MonkeyPatch, overrides: list[str], file: str | None
) -> None:
    files = []
    monkeypatch.setattr(
        published_weights, "fetch", lambda weights, tell: files.append(weights.file)
    )
    model_weights.fetch(compose(overrides))
    assert files == ([file] if file else [])


def test_model_of_a_task_has_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    networks = []
    monkeypatch.setattr(
        published_weights, "find", lambda network, size, **options: networks.append(network)
    )
    monkeypatch.setattr(published_weights, "fetch", lambda weights, tell: None)
    experiment = compose(["experiment=gan_digits"])
    assert experiment.task is not None
    experiment.task["discriminator"] = compose(NETWORK).model
    model_weights.fetch(experiment)
    assert networks == ["MobileNet"]
