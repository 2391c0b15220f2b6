"""A seeded fuzzer of command lines, YAML files and records.

Each case is drawn from its number: a command that somebody might type, with mistakes in it, in a
folder with a finished run whose records may be damaged and with choices whose YAML may be. It must
end soon, with exit code 0 or 2 and without a traceback, or begin to train. Everything runs in this
process; what would start another one counts as training.

    python -m tests.support.fuzzer --runs 5000 --seed 0
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from tests.support.command_line import ROOT, run_here
from trainer.cli.command_table import COMMANDS
from trainer.config.schema import GROUPS, Experiment

CPU_SECS = 5.0
"""Processor time that a case may take: time on the wall depends on what else the machine does."""
WALL_SECS = 120
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


@dataclass(frozen=True)
class Case:
    """One command.

    Attributes:
        words: what stands after the program's name.
        damage: changes the files in the folder where it runs.
    """

    words: tuple[str, ...]
    damage: Callable[[Path], None]


def make_template(folder: Path) -> None:
    """Make a folder with a finished run in `runs/`, and with choices in `mine/`."""
    subprocess.run(
        [
            sys.executable, str(ROOT / "train.py"), "model=softmax", "train.steps=4",
            "checkpoint.every_steps=2", "name=run", "evaluate.every_steps=2",
        ],
        cwd=folder,
        capture_output=True,
        timeout=300,
        check=True,
    )  # fmt: skip
    (run_dir,) = (folder / "runs").glob("run-*")
    run_dir.rename(folder / "runs" / "run")
    for group in ("model", "dataset", "optimizer", "strategy", "callbacks"):
        (folder / "mine" / group).mkdir(parents=True)
        for file in (CONF / group).glob("*.yaml"):
            shutil.copy(file, folder / "mine" / group / f"my_{file.name}")


def draw(number: int, seed: int) -> Case:
    """Return the case of a number."""
    dice = random.Random(f"{seed}-{number}")
    kind = dice.choice(["command line"] * 3 + ["subcommand", "yaml", "record"])
    if kind == "yaml":
        group = dice.choice(["model", "dataset", "optimizer", "strategy", "callbacks"])
        file = dice.choice(sorted((CONF / group).glob("*.yaml")))
        words = [f"--config-dir={dice.choice(['mine', 'mine', './mine/', 'absent'])}"]
        words += [f"{group}=my_{file.stem}", *_overrides(dice, dice.randint(0, 2))]
        path = f"mine/{group}/my_{file.name}"
        return Case(tuple(words), _damages(dice, [path]))
    if kind == "subcommand":
        return Case(tuple(_subcommand(dice)), lambda folder: None)
    if kind == "record":
        names = ["config.yaml", "run.json", "result.json", "metrics.jsonl", "ledger.jsonl"]
        names += ["checkpoints/ckpt-4.json", "checkpoints/ckpt-4.index", "logs/worker-0.log"]
        paths = [f"runs/run/{name}" for name in dice.sample(names, dice.randint(1, 3))]
        words = dice.choice(
            [
                ["resume=runs/run"], ["resume=runs/run", *_overrides(dice, 1)], ["runs"],
                ["status", "runs/run"], ["checkpoints", "runs/run"], ["report", "runs/run"],
                ["diff", "runs/run", "runs/run"], ["mode=evaluate", "resume=runs/run"],
                ["mode=predict", "resume=runs/run", "checkpoint=best"],
            ]
        )  # fmt: skip
        return Case(tuple(words), _damages(dice, paths))
    return Case(tuple(_command_line(dice)), lambda folder: None)


def _damages(dice: random.Random, paths: list[str]) -> Callable[[Path], None]:
    numbers = [dice.getrandbits(32) for _ in paths]

    def damage(folder: Path) -> None:
        for number, path in zip(numbers, paths, strict=True):
            _damage(folder / path, random.Random(number))

    return damage


def _damage(path: Path, dice: random.Random) -> None:
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


def _keys(schema: Any = Experiment, path: str = "") -> Iterator[str]:
    for item in fields(schema):
        value = getattr(schema(), item.name)
        name = f"{path}{item.name}"
        if name in EXCLUDED or name == "choices":
            continue
        if is_dataclass(value):
            yield from _keys(type(value), f"{name}.")
        elif name not in GROUPS:
            yield name


KEYS = sorted(_keys())
CHOICES = {
    group: sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    for group in GROUPS
    if group not in EXCLUDED
}
OPTIONS = ["model.width", "optimizer.learning_rate", "dataset.path", "strategy.workers",
    "callbacks.early_stopping.patience", "fault.x.at", "task.focal_gamma", "augment.crop",
    "schedule.warmup_steps", "strategy.virtual_devices", "model.dropout", "writers", "dataset",
    "search.trials", "batch_size", "epochs", "lr"]  # fmt: skip


def _override(dice: random.Random) -> str:
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


def _overrides(dice: random.Random, count: int) -> list[str]:
    return [_override(dice) for _ in range(count)]


def _command_line(dice: random.Random) -> list[str]:
    words = _overrides(dice, dice.randint(1, 4))
    flags = [[]] * 8 + [
        ["--help"], ["-h", "model"], ["--cfg", "job"], ["--cfg"],
        ["-m"], ["--version"], ["--nothing"], ["-x"], ["--config-dir"], ["--"], ["--config-dir="],
        ["--config-dir", "mine"],
    ]  # fmt: skip
    flag = dice.choice(flags)
    return [*flag, *words] if dice.random() < 0.5 else [*words, *flag]


def _subcommand(dice: random.Random) -> list[str]:
    name = dice.choice(sorted(COMMANDS))
    pool = [
        "runs", "runs/run", "runs/run/", "runs/run/config.yaml", "absent", "--json", "--help",
        "--nothing", "bash", "stop", "--output", "--output=x.html", "model=cnn",
        "strategy=multi_worker", "--image", "image", "--time=1", "--nodes=2", "/", "/dev/null",
        "--all", "--verify", *dice.sample(NASTY, 3), _override(dice),
    ]  # fmt: skip
    return [name, *(dice.choice(pool) for _ in range(dice.randint(0, 4)))]


@contextmanager
def nothing_trains() -> Iterator[None]:
    """Replace, for the block, what starts a process that trains by an exception."""
    from trainer.launch.engines import ray_connection
    from trainer.launch.processes import inline
    from trainer.launch.processes.fork_server import ForkServer

    real = subprocess.Popen.__init__

    def init(self: Any, args: Any, *others: Any, **options: Any) -> None:
        command = [args] if isinstance(args, str | bytes | os.PathLike) else list(args)
        if os.path.basename(os.fspath(command[0])) != "git":
            raise Trains
        real(self, args, *others, **options)

    def trains(*_: Any, **__: Any) -> Any:
        raise Trains

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(subprocess.Popen, "__init__", init))
        stack.enter_context(mock.patch.object(ForkServer, "acquire", trains))
        stack.enter_context(mock.patch.object(inline, "run", trains))
        stack.enter_context(mock.patch.object(ray_connection, "connected", trains))
        yield


def _too_slow(*_: Any) -> None:
    raise TooSlow


def problem_of(case: Case, template: Path, scratch: Path) -> str | None:
    """Run a case in a copy of the template; return what is wrong, or None."""
    shutil.copytree(template, scratch)
    case.damage(scratch)
    handlers = [signal.signal(number, _too_slow) for number in (signal.SIGPROF, signal.SIGALRM)]
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
    # It tells by 1 that a checkpoint is damaged.
    expected = (0, 1, 2) if case.words[:1] == ("checkpoints",) else (0, 2)
    if "Traceback" in outcome.err or outcome.code not in expected:
        return f"exit code {outcome.code}\n{outcome.err}"
    if outcome.code == 2 and not outcome.err.strip():
        return "exit code 2 without a line"
    if any(ord(letter) < 32 and letter not in "\n\t" for letter in outcome.err):
        return f"control characters reach the terminal: {outcome.err!r}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    problems = 0
    with tempfile.TemporaryDirectory() as temporary:
        template = Path(temporary) / "template"
        template.mkdir()
        make_template(template)
        for number in range(options.first, options.first + options.runs):
            case = draw(number, options.seed)
            if problem := problem_of(case, template, Path(temporary) / "scratch"):
                problems += 1
                print(f"--- {number}: {shlex.join(case.words)}\n{problem}", flush=True)
    print(f"{options.runs} cases, {problems} problems")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
