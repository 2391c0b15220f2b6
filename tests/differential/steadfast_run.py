"""Trains a program with Steadfast: in this process, or by the command."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import traceback
from pathlib import Path

from tests.differential.keras_run import class_weights, count_anew, made, predict
from tests.differential.program import BATCH
from tests.differential.results import Results, weights_of
from tests.support.processes import only_run
from tests.support.scratch import new_folder
from tests.support.training import recipe
from trainer.errors import ConfigError, NonFiniteError
from trainer.fitting.fit import restored
from trainer.notebook import Run

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SECS = 900

LAYOUTS = {
    "one_device": (),
    "mirrored": ("strategy=mirrored", "strategy.virtual_devices=2"),
    "shards": ("batch.shards=2",),
    "accumulate": ("batch.accumulate=2",),
    "mirrored_shards": ("strategy=mirrored", "strategy.virtual_devices=2", "batch.shards=2"),
    "multi_worker": ("strategy=multi_worker", "strategy.workers=2"),
    "undisturbed": (),
    "again": (),
    "killed": (
        "fault=kill_chief_at_50", "fault.kill_chief_at_50.at=2", "restart.backoff_secs=0",
    ),
}  # fmt: skip
PROCESSES = {"multi_worker", "undisturbed", "again", "killed"}
"""Layouts that need processes of their own."""

KEYS = {"clipvalue": "train.clip_value", "global_clipnorm": "train.clip_norm"}
RENAMED = {"initial_accumulator_value": "initial_accumulator"}


class Refused(Exception):
    """Steadfast has refused a program in one line."""


class Crashed(Exception):
    """Steadfast has failed without an explanation in one line."""


def overrides(program, module):
    """Return the command line that trains a program which is a module."""
    words = [
        "task=keras",
        "model=softmax",
        "~model.l2",
        f"model._target_={module}.make_model",
        "dataset=arrays",
        "dataset._target_=trainer.datasets.fit_data.data_of_fit",
    ]
    for name in ("data", "held_out"):
        node = f"++dataset.{name}."
        words += [f"{node}_target_={module}.{name}", f"{node}_partial_=true"]
    words += [
        f"batch.global_size={BATCH}",
        f"train.steps={program.steps * program.epochs}",
        f"train.steps_per_epoch={program.steps}",
        "summary.every_steps=1000",
        "summary.every_epochs=1",
        "evaluate.every_epochs=1",
        "writers=[jsonl]",
    ]
    # A stream does not know how many examples it makes.
    if program.data.source in ("generator", "sequence") or program.data.lengths:
        words.append(f"++dataset.num_examples={program.data.train}")
    if program.data.class_weights:
        pairs = ",".join(f"{key}:{value}" for key, value in class_weights(program).items())
        words.append(f"task.class_weights={{{pairs}}}")
    if program.optimizer.by_key:
        from tests.differential.catalog import BY_KEY

        item = program.optimizer
        words += [f"optimizer={BY_KEY[item.name]}", f"optimizer.learning_rate={item.rate}"]
        options = dict(item.options)
        if item.name == "SGD":
            options.setdefault("momentum", "0.0")
        words += [
            f"{KEYS.get(name) or f'++optimizer.{RENAMED.get(name, name)}'}={value.lower()}"
            for name, value in options.items()
        ]
    return words


def command(program, layout):
    """Return the command that trains a program on a layout, if its script is `program.py`."""
    words = [*overrides(program, "program"), *LAYOUTS.get(layout, ())]
    return shlex.join(["python", "train.py", *words])


def train(program, module, layout):
    """Train a program on a layout.

    Raises:
        Refused: it was refused in one line.
        Crashed: it failed in another way.
    """
    folder = new_folder()
    try:
        words = [*overrides(program, module.__name__), *LAYOUTS[layout]]
        if layout in PROCESSES:
            run_dir = _by_command(folder, words, Path(str(module.__file__)).parent)
        else:
            run_dir = _here(folder, words)
        try:
            model = restored(made(module), run_dir, "latest")
        except ConfigError as error:
            raise Crashed(f"run.model(): {error}") from error
        return Results(
            dict(Run(run_dir, 0).history), weights_of(model), predict(program, module, model)
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _here(folder, words):
    """Train in this process; return the run directory."""
    try:
        count_anew()
        recipe(folder, *words).train(lambda: False)
    except (ConfigError, NonFiniteError) as error:
        lines = str(error).splitlines()
        if len(lines) != 1:
            raise Crashed(f"a refusal of {len(lines)} lines: {error}") from error
        raise Refused(lines[0]) from error
    except Exception as error:
        raise Crashed(f"{type(error).__name__}: {error}\n{traceback.format_exc()}") from error
    return folder


def _by_command(folder, words, modules):
    """Train in processes of its own, which find the program in a folder; return the run's."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{modules}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECS,
        check=False,
    )
    if done.returncode == 2 and len(done.stderr.splitlines()) == 1:
        raise Refused(re.sub("^error: ", "", done.stderr.strip()))
    if done.returncode:
        raise Crashed(f"exit code {done.returncode}: {done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return only_run(folder)
