"""Programs whose layers draw or keep what Keras does not see, and that cannot be right."""

import pytest

from tests.support.processes import ROOT, run

PROGRAMS = ROOT / "tests" / "programs"
TOGETHER = "strategy=multi_worker"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "overrides", "problem"),
    [
        ("untracked_variable.scaled", (), "reads the variable scale/factor:0 (shape []), which is"),
        ("vae_tf_random.vae", (TOGETHER, "+model.draw=raw"), "RandomStandardNormal in "),
    ],
)
def test_what_cannot_be_right_is_refused_in_one_line(
    tmp_path, monkeypatch, model, overrides, problem
):
    monkeypatch.setenv("PYTHONPATH", str(PROGRAMS))
    code, out, err = run(
        tmp_path, "model=softmax", "~model.l2", f"model._target_={model}", "train.steps=6",
        "batch.global_size=16", "batch.shards=2", "writers=[jsonl]", *overrides,
    )  # fmt: skip
    assert code == 2, f"{out}\n{err}"
    (line,) = err.splitlines()
    assert line.startswith("error: the training step: ")
    assert problem in line
    assert not (tmp_path / "runs").exists()
