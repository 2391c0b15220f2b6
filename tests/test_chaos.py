"""Whatever is done to whichever process in whichever phase, the run ends as one that nothing happened to.

Each cell of the matrix is one fault, at a random moment of the phase. The cells that differ in the phase alone happen to one run of
real processes, one after the other: most of the time goes into starting processes. The run is started again by the same command as
long as it stopped on request or was killed as a whole. Then everything is compared with the straight run: a synchronous one to the
bit. `STEADFAST_CHAOS_SEED=<seed>` draws other moments; a failure tells the seed that repeats it.
"""

import itertools
import json
import os
import random
import signal
import uuid
from pathlib import Path

import numpy as np
import pytest

from tests.processes import final_variables, finish, log, only_run, start, wait_gone
from trainer.markers import committed, verify

SEED = int(os.environ.get("STEADFAST_CHAOS_SEED", "4"))

# 24 steps of one graph call each, 6 evaluations, 8 saves; every random part is in it: dropout, augmentation, averages.
OPTIONS = [
    "model.width=4", "model.dropout=0.3", "dataset.crop=1", "train.steps=24", "train.steps_per_loop=1", "train.ema_decay=0.9",
    "batch.global_size=16", "evaluate.every_steps=4", "evaluate.every_epochs=null", "summary.every_steps=5",
    "checkpoint.every_steps=3", "checkpoint.every_epochs=null", "checkpoint.best.metric=accuracy",
    "callbacks=early_stopping", "callbacks.early_stopping.patience=99", "restart.backoff_secs=0", "restart.max_restarts=8",
    "watchdog.stall_secs=8", "watchdog.compile_secs=60", "watchdog.evaluate_secs=8", "watchdog.save_secs=8",
]  # fmt: skip
STRATEGIES = {
    "one_device": ["strategy=one_device"],
    "mirrored": ["strategy=mirrored", "strategy.virtual_devices=2", "checkpoint.async_write=true"],
    "multi_worker": ["strategy=multi_worker", "model.batch_norm=true"],
    "parameter_server": ["strategy=parameter_server", "strategy.workers=2", "strategy.ps=1"],
}
OTHERS = {"one_device": [], "mirrored": [], "multi_worker": ["worker-1"], "parameter_server": ["worker-1", "ps-0"]}
PARTICULAR = {("kill", "step"), ("kill", "save"), ("kill", "evaluate"), ("terminate", "step"), ("freeze", "step")}
"""Of parameter servers, what is not the same as with other strategies."""
WHATS, PHASES = ("kill", "terminate", "freeze"), ("start", "step", "save", "evaluate")


def cells():
    """Gives (strategy, what, who, when)."""
    for strategy, what, when in itertools.product(STRATEGIES, WHATS, PHASES):
        whos = ["chief", *OTHERS[strategy]]
        if what == "freeze" and (when in ("start", "save") or strategy == "mirrored"):
            continue  # as long as a freeze takes to be noticed, two phases must do; and mirrored has the processes of one_device
        if strategy == "parameter_server" and (what, when) not in PARTICULAR:
            continue
        yield from ((strategy, what, who, when) for who in whos)
        # A frozen supervisor is nobody's loss: the workers go on.
        if what != "freeze" and (strategy == "one_device" or (strategy == "multi_worker" and when in ("start", "step"))):
            yield strategy, what, "supervisor", when


WORST = {
    ("multi_worker", "kill", "worker-1", "save"),
    ("parameter_server", "kill", "ps-0", "step"),
}


def runs():
    """Gives what happens to each run: (strategy, what, who, phases)."""
    found = {}
    for cell in cells():
        found.setdefault((cell[:3], cell in WORST), []).append(cell[3])
    for (common, is_worst), phases in found.items():
        yield pytest.param(*common, phases, id="-".join([*common, *phases]), marks=[] if is_worst else [pytest.mark.slow])


def fault(what, who, when, moment):
    """Words a fault at a random moment as an override."""
    # Evaluations and saves are counted from each start: of so few there are enough, whatever else happens before.
    at = {"start": 1, "save": moment.randint(1, 3), "evaluate": moment.randint(1, 2), "step": moment.randint(1, 23)}
    delay = moment.choice([0, 0, round(moment.uniform(0, 0.2), 3)])
    if what == "terminate":
        # One after the other: a second request, also one that comes while the run saves because of the first, means to leave at once.
        at |= {"save": moment.randint(1, 2), "evaluate": 2, "step": moment.randint(14, 23)}
        delay = delay if when in ("start", "step") else 0
    return f"+fault.at_{when}={{what:{what},who:{who},when:{when},at:{at[when]},delay_secs:{delay}}}"


def run_to_the_end(directory, *overrides, faults=()):
    """Gives the command until the run is finished; gives the exit codes, and all that was printed."""
    mark, codes, told = uuid.uuid4().hex, [], ""
    temporary = directory / "tmp"
    temporary.mkdir()
    while codes[-1:] != [0]:
        code, out, err = finish(start(directory, *OPTIONS, *overrides, *faults, STEADFAST_TEST=mark, TMPDIR=str(temporary)))
        codes.append(code)
        told += f"\n--- {code}\n{out}{err}"
        assert code in (0, 143, -signal.SIGKILL), told
        assert len(codes) <= 1 + len(faults), told
    wait_for_orphans(mark)
    assert list(temporary.iterdir()) == []
    return codes, told


def wait_for_orphans(mark):
    """Waits until no process is left that has a mark in its environment."""
    while living := marked(mark):
        wait_gone(living[0])


def marked(mark):
    """Gives the processes that have a mark in their environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (place / "environ").read_bytes():
                found.append(int(place.name))
        except OSError:
            continue  # it has ended, or is another user's
    return found


def names(run_dir):
    """Gives the files of a run but logs, events (their names tell the time), checkpoints, and what says that there was a fault."""
    files = {str(file.relative_to(run_dir)) for file in run_dir.rglob("*") if file.is_file()}
    return {name for name in files if name.split("/")[0] not in ("logs", "events", "faults", "checkpoints")}


def saved(run_dir):
    """Gives the steps of the checkpoints, of which nothing else is left; a stop may have saved more than was planned."""
    directory = run_dir / "checkpoints"
    steps = committed(directory)
    whole = {f"ckpt-{step}.{end}" for step in steps for end in ("data-00000-of-00001", "index", "json")}
    assert {file.name for file in directory.iterdir()} == whole
    assert [verify(directory, step) for step in steps] == [None] * len(steps)
    return steps


def result(run_dir):
    found = json.loads((run_dir / "result.json").read_text())
    return {key: found[key] for key in ("step", "metrics", "best")}


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Gives the straight run of a strategy, made once."""
    made = {}

    def of(strategy):
        if strategy not in made:
            directory = tmp_path_factory.mktemp(strategy)
            assert run_to_the_end(directory, *STRATEGIES[strategy])[0] == [0]
            made[strategy] = only_run(directory)
        return made[strategy]

    return of


@pytest.mark.parametrize(("strategy", "what", "who", "phases"), list(runs()))
def test_a_run_ends_as_if_nothing_had_happened(tmp_path, straight, strategy, what, who, phases):
    moment = random.Random(f"{SEED}-{strategy}-{what}-{who}-{phases}")
    faults = [fault(what, who, when, moment) for when in phases]
    print(f"STEADFAST_CHAOS_SEED={SEED}: {' '.join(faults)}")
    codes, told = run_to_the_end(tmp_path, *STRATEGIES[strategy], faults=faults)
    print(told)
    run_dir, expected = only_run(tmp_path), straight(strategy)
    assert {file.stem for file in (run_dir / "faults").iterdir()} == {f"at_{when}" for when in phases}, "not all happened"
    ended = {"terminate": 143, "kill": -signal.SIGKILL if who == "supervisor" else None}.get(what)
    assert set(codes[:-1]) <= {ended}
    assert what != "terminate" or len(codes) >= len(phases)  # the last one may come too late
    assert names(run_dir) == names(expected)
    assert saved(run_dir)[-1] == saved(expected)[-1] == 24
    assert result(run_dir)["step"] == 24
    if strategy == "parameter_server":
        assert [line["step"] for line in log(run_dir)] == [line["step"] for line in log(expected)]
        return
    assert result(run_dir) == result(expected)
    assert log(run_dir) == log(expected)
    ours, theirs = final_variables(run_dir), final_variables(expected)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)


def test_the_matrix_has_enough_cells():
    found = list(cells())
    assert len(found) == len(set(found)) >= 60
    assert set(found) >= WORST
    assert {cell[:2] for cell in found} >= set(itertools.product(STRATEGIES, ("kill", "terminate")))
