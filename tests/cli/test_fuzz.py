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
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import fields, is_dataclass
from socketserver import BaseServer
from typing import NamedTuple
from unittest import mock

import pytest

from tests.support.command_line import ROOT, run_here
from trainer.cli.command_table import COMMANDS
from trainer.config.schema import GROUPS, Experiment

NUM_CASES = 60
CPU_SECS = 5.0
"""Processor time that a case may take: time on the wall depends on what else the machine does."""
WALL_SECS = 120
YAML_GROUPS = ("model", "dataset", "optimizer", "strategy", "callbacks")
CONF = ROOT / "conf"
NASTY = [
    "", " ", "null", "~", "true", "nan", "inf", "-inf", "-1", "0", "0.0", "1e400", "1e-9", "2.5",
    "99999999999999999999", "[]", "[1,2]", "{}", "{a:1}", "[", "}", "'", '"', "\\", "a b", "a=b",
    "../x", "/", "/dev/null", ".", "..", "a/b", "ü", "\x1b[31m", "\x07", "${seed}", "${nothing}",
    "${oc.env:HOME}", "${", "x" * 300, "None", "True", "1,2", "a,b", "range(1,3)", "choice(a)",
    "glob(*)", "!!python/name:os.system", "@", "%", "a.b.c", "json", "1_000", "0x10", "1:2", "=",
]  # fmt: skip
EXCLUDED = {
    "store", "launch", "launch.engine", "launch.ray", "hydra",
}  # fmt: skip
"""They would reach for a network, or for processes of another program."""


class Trains(BaseException):
    """The command would start a process that trains."""


class TooSlow(BaseException):
    """The command takes too long."""


class Case(NamedTuple):
    """A command, the file that is damaged where it runs, if any, and what draws the damage."""

    words: tuple[str, ...]
    file: str | None = None
    seed: int = 0


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
    dice = random.Random(f"0-{number}")
    kind = dice.choice(["command line"] * 3 + ["subcommand", "yaml", "yaml"])
    if kind == "yaml":
        group = dice.choice(YAML_GROUPS)
        file = dice.choice(sorted((CONF / group).glob("*.yaml")))
        words = [f"--config-dir={dice.choice(['mine', 'mine', './mine/', 'absent'])}"]
        words += [f"{group}=my_{file.stem}", *overrides(dice, dice.randint(0, 2))]
        return Case(tuple(words), f"mine/{group}/my_{file.name}", dice.getrandbits(32))
    return Case(tuple(subcommand(dice) if kind == "subcommand" else command_line(dice)))


def damage(path, dice):
    """Damage a file as disks, editors and people do."""
    content = path.read_bytes()
    kind = dice.randrange(10)
    path.unlink()
    at = dice.randrange(len(content) + 1)
    match kind:
        case 0:
            return
        case 1:
            path.mkdir()
        case 2:
            os.mkfifo(path)
        case 3:
            path.write_bytes(b"")
        case 4:
            path.write_bytes(content[:at])
        case 5:
            flipped = bytearray(content or b"\0")
            flipped[dice.randrange(len(flipped))] ^= 1 << dice.randrange(8)
            path.write_bytes(flipped)
        case 6:
            path.write_text(content.decode(errors="replace"), "utf-16")
        case 7:
            path.write_bytes(
                dice.choice([b"[]", b"{}", b"null", b"3", b'"x"', b"\xff\xfe", b"- a"])
            )
        case 8:
            line = dice.choice(NASTY).encode() + dice.choice([b"", b": ", b"\n"])
            path.write_bytes(content[:at] + line + content[at:])
        case _:
            path.write_bytes(content.replace(b": ", b":\t" if dice.random() < 0.5 else b": - "))


def keys(schema=Experiment, path=""):
    for item in fields(schema):
        value = getattr(schema(), item.name)
        name = f"{path}{item.name}"
        if name in EXCLUDED or name == "choices":
            continue
        if is_dataclass(value):
            yield from keys(type(value), f"{name}.")
        elif name not in GROUPS:
            yield name


KEYS = sorted(keys())
CHOICES = {
    group: sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    for group in GROUPS
    if group not in EXCLUDED
}
OPTIONS = ["model.width", "optimizer.learning_rate", "dataset.path", "strategy.workers",
    "callbacks.early_stopping.patience", "fault.x.at", "task.focal_gamma", "augment.crop",
    "schedule.warmup_steps", "strategy.virtual_devices", "model.dropout", "writers", "dataset",
    "search.trials", "batch_size", "epochs", "lr"]  # fmt: skip


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


@contextmanager
def nothing_trains():
    """Replace, for the block, what trains, or serves until Ctrl-C, by an exception."""
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

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(subprocess.Popen, "__init__", init))
        stack.enter_context(mock.patch.object(ForkServer, "acquire", trains))
        stack.enter_context(mock.patch.object(launcher, "run_inline", trains))
        stack.enter_context(mock.patch.object(BaseServer, "serve_forever", trains))
        stack.enter_context(mock.patch.object(ray_engine, "connected", trains))
        yield


def too_slow(*_):
    raise TooSlow


def problem_of(case, template, scratch):
    """Run a case in a copy of the template; return what is wrong, or None."""
    shutil.copytree(template, scratch)
    if case.file is not None:
        damage(scratch / case.file, random.Random(case.seed))
    handlers = [signal.signal(number, too_slow) for number in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, CPU_SECS)
    signal.alarm(WALL_SECS)
    try:
        with chdir(scratch), nothing_trains():
            outcome = run_here(*case.words)
    except Trains:
        return None
    except TooSlow:
        return f"it takes more than {CPU_SECS:g} s of processor time, or waits"
    except BaseException as error:
        return f"it ends with {error!r}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        for number, handler in zip((signal.SIGPROF, signal.SIGALRM), handlers, strict=True):
            signal.signal(number, handler)
        shutil.rmtree(scratch, ignore_errors=True)
    if "Traceback" in outcome.err or outcome.code not in (0, 2):
        return f"exit code {outcome.code}\n{outcome.err}"
    if outcome.code == 2 and not outcome.err.strip():
        return "exit code 2 without a line"
    if any(ord(letter) < 32 and letter not in "\n\t" for letter in outcome.err):
        return f"control characters reach the terminal: {outcome.err!r}"
    return None


@pytest.mark.slow
def test_every_command_ends_with_a_line_or_trains(template, tmp_path):
    problems = {}
    for number in range(NUM_CASES):
        case = draw(number)
        if problem := problem_of(case, template, tmp_path / "scratch"):
            problems[f"{number}: {shlex.join(case.words)}"] = problem
    assert problems == {}
