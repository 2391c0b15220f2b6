"""The gallery: each program has the bits of one device in two processes, one of them killed."""

import functools
import json
import shutil

import pytest

from tests.support.marks import first_only
from tests.support.processes import ROOT, final_variables, only_run, succeed
from tests.support.scratch import new_folder
from tests.support.training import assert_same_bits

SEVERAL = {
    "transfer": ["transfer_base", "transfer_head", "transfer_fine_tune"],
    "distillation": ["distillation_teacher", "distillation"],
}
"""Program -> its recipes: each begins with the weights of the one before."""
PROGRAMS = [
    *("mnist_convnet", "cutmix", "transfer", "vae", "wgan_gp", "distillation", "segmentation"),
    *("text_transformer", "mini_gpt", "structured_data", "recommender", "weather"),
]
SHORT = [
    "train.epochs=null", "train.steps=5", "batch.global_size=16", "batch.shards=2",
    "evaluate.every_steps=5", "checkpoint.every_steps=2", "checkpoint.every_epochs=null",
    "restart.backoff_secs=0", "writers=[jsonl]",
]  # fmt: skip
LAYOUTS = {
    "killed": [
        "strategy=multi_worker", "strategy.workers=2",
        "+fault.kill={action: kill, process: chief, phase: step, at: 3}",
    ],
    "mirrored": ["strategy=mirrored", "strategy.virtual_devices=2"],
}  # fmt: skip
CASES = [*((program, "killed") for program in PROGRAMS), (PROGRAMS[0], "mirrored")]


@functools.cache
def trained(program, layout=""):
    """Train a few steps; return the final variables, the metrics, and what was printed."""
    *earlier, recipe = SEVERAL.get(program, [program])
    weights = []
    for name in earlier:  # with the same weights for all layouts
        weights = [f"init_from={initial(name, *weights)}"]
    return train(recipe, *weights, *LAYOUTS.get(layout, []))[1:]


def train(recipe, *options):
    """Train in a copy of the gallery; return also the run directory."""
    folder = new_folder() / "gallery"
    ignored = shutil.ignore_patterns("runs")
    shutil.copytree(ROOT / "docs" / "examples" / "gallery", folder, ignore=ignored)
    out = succeed(folder, f"experiment={recipe}", *SHORT, *options)
    run_dir = only_run(folder)
    result = json.loads((run_dir / "result.json").read_text())
    return run_dir, final_variables(run_dir), result["metrics"], out


@functools.cache
def initial(recipe, *options):
    """Return the directory of a run that another begins with."""
    return train(recipe, *options)[0]


@pytest.mark.slow
@pytest.mark.parametrize(("program", "layout"), first_only(CASES))
def test_program_has_the_same_bits(program, layout):
    variables, metrics, out = trained(program, layout)
    assert ("Continuing from step " in out) == (layout == "killed")
    assert_same_bits(trained(program)[0], variables)
    assert metrics == pytest.approx(trained(program)[1], rel=1e-5)
