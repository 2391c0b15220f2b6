"""Commands with mistakes, and YAML files with damage: a line each, or training begins.

Each case is drawn from its number. Everything runs in this process; what would start another one
counts as training.
"""

from __future__ import annotations

import os
import random
import shlex
import shutil
import signal
import subprocess
from contextlib import chdir
from socketserver import BaseServer

import pytest

from tests.support.choices import CONF, keys
from tests.support.command_line import run_here
from trainer.cli.command_table import COMMANDS
from trainer.config.schema import GROUPS, Experiment

NUM_CASES = 60
CPU_SECS = 5.0
"""Processor time that a case may take: time on the wall depends on what else the machine does."""
WALL_SECS = 120
YAML_GROUPS = ("model", "dataset", "optimizer", "strategy", "callbacks")
NASTY = [
    "", " ", "null", "~", "true", "nan", "inf", "-inf", "-1", "0", "0.0", "1e400", "1e-9", "2.5",
    "99999999999999999999", "[]", "[1,2]", "{}", "{a:1}", "[", "}", "'", '"', "\\", "a b", "a=b",
    "../x", "/", "/dev/null", ".", "..", "a/b", "ü", "\x1b[31m", "\x07", "${seed}", "${nothing}",
    "${oc.env:HOME}", "${", "x" * 300, "None", "True", "1,2", "a,b", "range(1,3)", "choice(a)",
    "glob(*)", "!!python/name:os.system", "@", "%", "a.b.c", "json", "1_000", "0x10", "1:2", "=",
]  # fmt: skip
EXCLUDED = {"store", "launch", "hydra"}
"""They would reach for a network, or for processes of another program."""


class Trains(BaseException):
    """The command would start a process that trains."""


class TooSlow(BaseException):
    """The command takes too long."""


@pytest.fixture
def template(tmp_path):
    """A folder with choices in `mine/`, and an empty one for runs."""
    folder = tmp_path / "template"
    folder.mkdir()
    (folder / "runs").mkdir()
    for group in YAML_GROUPS:
        (folder / "mine" / group).mkdir(parents=True)
        for file in (CONF / group).glob("*.yaml"):
            shutil.copy(file, folder / "mine" / group / f"my_{file.name}")
    return folder


def draw(number):
    """Return a command, the file that is damaged where it runs (or None), and what draws it."""
    dice = random.Random(f"0-{number}")
    kind = dice.choice(["command line"] * 3 + ["subcommand", "yaml", "yaml"])
    if kind != "yaml":
        return (subcommand if kind == "subcommand" else command_line)(dice), None, dice
    group = dice.choice(YAML_GROUPS)
    name = f"my_{dice.choice(sorted((CONF / group).glob('*.yaml'))).stem}"
    folder = dice.choice(["mine", "mine", "./mine/", "absent"])
    words = [f"--config-dir={folder}", f"{group}={name}", *overrides(dice, dice.randint(0, 2))]
    return words, f"mine/{group}/{name}.yaml", dice


def damage(path, dice):
    """Damage a file as disks, editors and people do."""
    content = path.read_bytes()
    at = dice.randrange(len(content))
    line = dice.choice(NASTY).encode() + dice.choice([b"", b": ", b"\n"])
    flipped = bytes([content[at] ^ 1 << dice.randrange(8)])
    path.unlink()
    if dice.random() < 0.1:
        os.mkfifo(path)
    else:
        path.write_bytes(
            dice.choice(
                [
                    *(b"", b"[]", b"{}", b"null", b"3", b'"x"', b"\xff\xfe", b"- a", content[:at]),
                    *(content[:at] + other + content[at + 1 :] for other in (line, flipped) * 2),
                    *(content.decode().encode("utf-16"), content.replace(b": ", b":\t")),
                ]
            )
        )


KEYS = sorted(key for key in keys(Experiment()) if key.partition(".")[0] not in EXCLUDED)
CHOICES = {
    group: sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    for group in GROUPS
    if group not in EXCLUDED
}
OPTIONS = ["model.width", "optimizer.learning_rate", "dataset.path", "strategy.workers",
    "callbacks.early_stopping.patience", "fault.x.at", "task.focal_gamma", "augment.crop",
    "schedule.warmup_steps", "strategy.virtual_devices", "model.dropout", "writers", "dataset",
    "search.max_points", "batch_size", "epochs", "lr"]  # fmt: skip


def override(dice):
    if dice.random() < 0.4:
        group = dice.choice(sorted(CHOICES))
        name, value = group, dice.choice([*CHOICES[group], dice.choice(NASTY)])
    else:
        name = dice.choice(KEYS if dice.random() < 0.7 else OPTIONS)
        value = dice.choice(NASTY) if dice.random() < 0.6 else str(dice.randint(-2, 2000))
    if dice.random() < 0.08:
        at = dice.randrange(len(name))
        name = name[:at] + dice.choice(["", "_", name[at] * 2, ".", "\x1b", "é"]) + name[at + 1 :]
    prefix = dice.choice([""] * 12 + ["+", "++", "~", "-", "--"])
    sign = dice.choice(["="] * 16 + ["", "==", " = ", ":"])
    return f"{prefix}{name}{sign}{value}"


def overrides(dice, count):
    return [override(dice) for _ in range(count)]


def command_line(dice):
    words = overrides(dice, dice.randint(1, 4))
    flags = [[]] * 8 + [
        ["--help"], ["-h", "model"], ["--cfg", "job"], ["--cfg"],
        ["-m"], ["--version"], ["--nothing"], ["-x"], ["--config-dir"], ["--"], ["--config-dir="],
        ["--config-dir", "mine"],
    ]  # fmt: skip
    flag = dice.choice(flags)
    return [*flag, *words] if dice.random() < 0.5 else [*words, *flag]


def subcommand(dice):
    name = dice.choice(sorted(COMMANDS))
    pool = [
        "runs", "runs/", "absent", "absent/config.yaml", "--json", "--help",
        "--nothing", "bash", "stop", "--output", "--output=x.html", "model=cnn",
        "strategy=multi_worker", "--image", "image", "--time=1", "--nodes=2", "/", "/dev/null",
        "--all", "--verify", *dice.sample(NASTY, 3), override(dice),
    ]  # fmt: skip
    return [name, *(dice.choice(pool) for _ in range(dice.randint(0, 4)))]


@pytest.fixture
def nothing_trains(monkeypatch):
    """Replace what trains, or serves until Ctrl-C, by an exception."""
    from trainer.cluster.fork_server import ForkServer
    from trainer.launch import launcher, ray_engine

    real = subprocess.Popen.__init__

    def init(self, args, *others, **options):
        command = [args] if isinstance(args, str | bytes | os.PathLike) else list(args)
        if os.path.basename(os.fspath(command[0])) != "git":
            raise Trains
        real(self, args, *others, **options)

    def trains(*_, **__):
        raise Trains

    monkeypatch.setattr(subprocess.Popen, "__init__", init)
    for owner, name in (
        (ForkServer, "acquire"), (launcher, "run_inline"), (BaseServer, "serve_forever"),
        (ray_engine, "connected"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, trains)


@pytest.fixture
def limits():
    """Return a function that starts the time that a case has; a case that takes longer ends."""

    def end(*_):
        raise TooSlow

    def start(cpu_secs=CPU_SECS, wall_secs=WALL_SECS):
        signal.setitimer(signal.ITIMER_PROF, cpu_secs)
        signal.alarm(wall_secs)

    before = {number: signal.signal(number, end) for number in (signal.SIGPROF, signal.SIGALRM)}
    yield start
    start(0, 0)
    for number, handler in before.items():
        signal.signal(number, handler)


def problem_of(words, limits):
    """Run a command; return what is wrong, or None."""
    limits()
    try:
        outcome = run_here(*words)
    except Trains:
        return None
    except BaseException as error:
        return f"it ends with {error!r}"
    finally:
        limits(0, 0)
    if "Traceback" in outcome.err or outcome.code not in (0, 2):
        return f"exit code {outcome.code}\n{outcome.err}"
    if outcome.code == 2 and not outcome.err.strip():
        return "exit code 2 without a line"
    if any(ord(letter) < 32 and letter not in "\n\t" for letter in outcome.err):
        return f"control characters reach the terminal: {outcome.err!r}"
    return None


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_trains")
def test_every_command_ends_with_a_line_or_trains(template, tmp_path, limits):
    problems = {}
    for number in range(NUM_CASES):
        words, file, dice = draw(number)
        scratch = shutil.copytree(template, tmp_path / f"{number}")
        if file is not None:
            damage(scratch / file, dice)
        with chdir(scratch):
            if problem := problem_of(words, limits):
                problems[f"{number}: {shlex.join(words)}"] = problem
    assert problems == {}
