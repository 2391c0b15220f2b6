"""Faults in any process and any phase: the run ends like one without faults.

Kills of synchronous runs are in test_kills.py.

Each cell of the matrix is one fault, at a random moment of the phase. Cells that differ only in the
phase happen to one run of real processes, one after the other: most of the time goes into starting
processes. The command is repeated as long as the run stopped on request or was killed as a whole.
Then everything is compared with the straight run: a synchronous one to the bit.
`STEADFAST_CHAOS_SEED=<seed>` draws other moments; a failure prints the seed that repeats it.
"""

import itertools
import json
import os
import random
import signal
import uuid
from pathlib import Path

import pytest

from tests.support.processes import (
    final_variables,
    finish,
    finished,
    log,
    only_run,
    start,
    wait_gone,
    worker_pids,
)
from tests.support.training import assert_same_bits
from trainer.runs.checkpoint_marker import committed_steps, verify

SEED = int(os.environ.get("STEADFAST_CHAOS_SEED", "4"))

# 24 steps of one graph call each, 6 evaluations, 8 saves, with dropout, statistics, augmentation
# and averages. Each fault is followed by a start, most of which is tracing: so the model is tiny.
OPTIONS = [
    "model=softmax", "~model.l2", "model._target_=tests.support.toy_models.tiny", "augment.crop=1",
    "train.steps=24", "train.steps_per_loop=1", "train.ema_decay=0.9", "batch.global_size=16",
    "evaluate.every_steps=4", "evaluate.every_epochs=null", "summary.every_steps=5",
    "checkpoint.every_steps=3", "checkpoint.every_epochs=null", "checkpoint.best.metric=accuracy",
    "callbacks=early_stopping", "callbacks.early_stopping.patience=99",
    "restart.backoff_secs=0", "restart.max_restarts=8",
    "watchdog.stall_secs=5", "watchdog.compile_secs=60",
    "watchdog.evaluate_secs=5", "watchdog.save_secs=8",
]  # fmt: skip
STRATEGIES = {
    "one_device": ["strategy=one_device"],
    "mirrored": ["strategy=mirrored", "strategy.virtual_devices=2", "checkpoint.async_write=false"],
    "multi_worker": ["strategy=multi_worker"],
    "parameter_server": ["strategy=parameter_server", "strategy.workers=2", "strategy.ps=1"],
}
OTHERS = {
    "one_device": [],
    "mirrored": [],
    "multi_worker": ["worker-1"],
    "parameter_server": ["worker-1", "ps-0"],
}
PARAMETER_SERVER_CELLS = {
    ("kill", "step"),
    ("kill", "save"),
    ("kill", "evaluate"),
    ("terminate", "step"),
    ("freeze", "step"),
}
"""(action, phase) that differ from those of the other strategies."""
ACTIONS = ("kill", "terminate", "freeze")
PHASES = ("start", "step", "save", "evaluate")


def cells():
    """Yield (strategy, action, process, phase)."""
    for strategy, action, phase in itertools.product(STRATEGIES, ACTIONS, PHASES):
        processes = ["chief", *OTHERS[strategy]]
        if action == "freeze" and (phase in ("start", "save") or strategy == "mirrored"):
            continue  # a freeze is noticed slowly; mirrored has the processes of one_device
        if action == "kill" and strategy != "parameter_server":
            continue
        if strategy == "parameter_server" and (action, phase) not in PARAMETER_SERVER_CELLS:
            continue
        yield from ((strategy, action, process, phase) for process in processes)
        # A frozen supervisor changes nothing: the workers continue.
        if action != "freeze" and (
            strategy == "one_device" or (strategy == "multi_worker" and phase in ("start", "step"))
        ):
            yield strategy, action, "supervisor", phase


SLOW = {("mirrored", "terminate", "chief")}
"""(strategy, action, process); other tests have the supervisor, a hang, and parameter servers."""


def runs():
    """Yield the faults of each run: (strategy, action, process, phases)."""
    for common, group in itertools.groupby(sorted(cells()), key=lambda cell: cell[:3]):
        phases = sorted((cell[3] for cell in group), key=PHASES.index)
        mark = pytest.mark.slow if common in SLOW else pytest.mark.long
        yield pytest.param(*common, phases, id="-".join([*common, *phases]), marks=mark)


def fault(action, process, phase, moment):
    """Format a fault at a random moment as an override."""
    # Evaluations and saves are counted from each start: there are enough of so few in any case.
    at = {
        "start": 1,
        "save": moment.randint(1, 3),
        "evaluate": moment.randint(1, 2),
        "step": moment.randint(1, 23),
    }
    delay = moment.choice([0, 0, round(moment.uniform(0, 0.2), 3)])
    if action == "terminate":
        # Not too close: a second request, also during the save of the first, exits at once.
        at |= {"save": moment.randint(1, 2), "evaluate": 2, "step": moment.randint(14, 23)}
        delay = delay if phase in ("start", "step") else 0
    keys = f"action:{action},process:{process},phase:{phase},at:{at[phase]},delay_secs:{delay}"
    return f"+fault.at_{phase}={{{keys}}}"


def run_to_the_end(directory, *overrides, faults=()):
    """Repeat the command until the run is finished; return the exit codes and the output."""
    codes = []
    output = ""
    temporary = directory / "tmp"
    temporary.mkdir()
    environment = {"STEADFAST_TEST": uuid.uuid4().hex, "TMPDIR": str(temporary)}
    while codes[-1:] != [0]:
        command = [*OPTIONS, *overrides, *faults]
        code, out, err = finish(start(directory, *command, **environment))
        codes.append(code)
        output += f"\n--- {code}\n{out}{err}"
        assert code in (0, 143, -signal.SIGKILL), output
        assert len(codes) <= 1 + len(faults), output
    wait_for_orphans(environment["STEADFAST_TEST"], directory)
    assert list(temporary.iterdir()) == []
    return codes, output


def wait_for_orphans(mark, directory):
    """Wait until no process is left that has a mark in its environment, or works below a folder.

    The environment of a forked worker is that of its server to those who look from outside.
    """
    while living := [*marked(mark), *worker_pids(directory).values()]:
        wait_gone(living[0])


def marked(mark):
    """Return the processes that have a mark in their environment."""
    processes = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                processes.append(int(folder.name))
        except OSError:
            continue  # it has ended, or is another user's
    return processes


def names(run_dir):
    """Return the files of a run, without logs, events (named by time), checkpoints and faults."""
    files = {str(file.relative_to(run_dir)) for file in run_dir.rglob("*") if file.is_file()}
    return {
        name
        for name in files
        if name.split("/")[0] not in ("logs", "events", "faults", "checkpoints")
    }


def saved(run_dir):
    """Return the steps of the checkpoints, and check that no other file is left beside them."""
    directory = run_dir / "checkpoints"
    steps = committed_steps(directory)
    whole = {
        f"ckpt-{step}.{end}" for step in steps for end in ("data-00000-of-00001", "index", "json")
    }
    assert {file.name for file in directory.iterdir()} == whole
    assert [verify(directory, step) for step in steps] == [None] * len(steps)
    return steps


def result(run_dir):
    content = json.loads((run_dir / "result.json").read_text())
    return {key: content[key] for key in ("step", "metrics", "best")}


@pytest.mark.parametrize(("strategy", "action", "process", "phases"), list(runs()))
def test_run_with_faults_ends_like_the_straight_run(tmp_path, strategy, action, process, phases):
    moment = random.Random(f"{SEED}-{strategy}-{action}-{process}-{phases}")
    faults = [fault(action, process, phase, moment) for phase in phases]
    print(f"STEADFAST_CHAOS_SEED={SEED}: {' '.join(faults)}")
    codes, output = run_to_the_end(tmp_path, *STRATEGIES[strategy], faults=faults)
    print(output)
    run_dir = only_run(tmp_path)
    expected = finished(*OPTIONS, *STRATEGIES[strategy])
    assert {file.stem for file in (run_dir / "faults").iterdir()} == {
        f"at_{phase}" for phase in phases
    }, "not all happened"
    killed = -signal.SIGKILL if process == "supervisor" else None
    assert set(codes[:-1]) <= {{"terminate": 143, "kill": killed}.get(action)}
    assert action != "terminate" or len(codes) >= len(phases)  # the last one may come too late
    assert names(run_dir) == names(expected)
    assert saved(run_dir)[-1] == saved(expected)[-1] == 24
    assert result(run_dir)["step"] == 24
    if strategy == "parameter_server":
        assert [line["step"] for line in log(run_dir)] == [line["step"] for line in log(expected)]
        return
    assert result(run_dir) == result(expected)
    assert log(run_dir) == log(expected)
    assert_same_bits(final_variables(run_dir), final_variables(expected))
