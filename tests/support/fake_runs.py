"""Run directories that nobody trained, for tests and measurements of what shows runs.

`python -m tests.support.fake_runs FOLDER --runs 200 --lines 500 --live 10 --rate 10` makes some,
and keeps writing to the live ones until Ctrl-C.
"""

import argparse
import base64
import json
import math
import time
import zlib
from contextlib import ExitStack, closing
from pathlib import Path

import yaml

from trainer.cli.compose import compose
from trainer.config import loading
from trainer.config.schema import Experiment
from trainer.files import Lock, write_json
from trainer.runs import ledger, process_status
from trainer.runs.directory import lock_file
from trainer.runs.process_status import HostStatus, ProcessStatus
from trainer.runs.status import record_failure

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
"""A picture of one pixel."""

_MODELS = ("cnn", "resnet", "mobilenet", "vit", "mlp_mixer")
_RATES = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)
_STEPS_PER_LINE = 10
_EVALUATED_LINES = 20
"""How many lines of training there are for one evaluation."""
_BEGIN = 1_750_000_000.0


class FakeRun:
    """A run directory without weights.

    Attributes:
        path: the directory.
    """

    def __init__(self, folder, number, total_lines, config):
        model, rate = _MODELS[number % len(_MODELS)], _RATES[number % len(_RATES)]
        self.path = folder / f"{model}-digits-{number:08x}"
        self._number = number
        self._total_lines = total_lines
        self._lines = 0
        (self.path / "checkpoints").mkdir(parents=True)
        (self.path / "logs").mkdir()
        config = config.replace("model: cnn", f"model: {model}")
        config = config.replace("learning_rate: 0.001", f"learning_rate: {rate}")
        config = config.replace("seed: 0\n", f"seed: {number}\n")
        seal = f"# crc32 of what follows: {zlib.crc32(config.encode()):08x}\n"
        (self.path / "config.yaml").write_text(seal + config)
        self._write_record(model, rate)
        self._mark("begin", None), self._mark("start", None, workers=2), self._mark("compile", 0)

    @property
    def step(self):
        """Number of updates made."""
        return self._lines * _STEPS_PER_LINE

    def train(self, lines):
        """Add lines of training to its metrics, and an evaluation every 20 of them."""
        with open(self.path / "metrics.jsonl", "ab") as file:
            for _ in range(lines):
                self._lines += 1
                file.write(self._line())
                if self._lines % _EVALUATED_LINES == 0:
                    file.write(self._evaluation())

    def mark(self):
        """Mark the newest step in its ledger: an evaluation, a save, and that it trains."""
        for phase in ("eval", "save", "step"):
            self._mark(phase, self.step)

    def restart(self):
        """Note that a worker was lost, and that the attempt continues with one."""
        self._mark("restart", None), self._mark("start", None, workers=1)
        self._mark("step", self.step)

    def save(self):
        """Add the marker of a checkpoint without its files."""
        record = {"step": self.step, "time": _BEGIN + self.step, "metrics": {}, "files": {}}
        write_json(self.path / "checkpoints" / f"ckpt-{self.step}.json", record, durable=False)

    def show_processes(self, code, end=""):
        """Write what its two processes do."""
        processes = [
            ProcessStatus(f"worker-{number}", "train", self.step, 0.5, end) for number in (0, 1)
        ]
        status = HostStatus("node-1", [], processes, code)
        process_status.write(self.path, "worker-0", status)

    def finish(self):
        """Complete it: its result, a confusion matrix, a picture, texts."""
        self._mark("end", self.step), self._mark("exit", None)
        record = {"step": self.step, "metrics": self._metrics(), "best": None}
        length = {"steps": self.step, "epochs": None}
        write_json(self.path / "result.json", {**record, "train": length}, durable=False)
        matrix = [[90 if row == column else row for column in range(10)] for row in range(10)]
        confusion = {"step": self.step, "classes": [*map(str, range(10))], "matrix": matrix}
        (self.path / "confusion.json").write_text(json.dumps(confusion))
        (self.path / "samples.png").write_bytes(PNG)
        (self.path / "samples.txt").write_text("Once upon a time\n")

    def fail(self):
        """Record that it has failed."""
        self._mark("exit", None)
        record_failure(self.path, "worker-1 was killed by SIGKILL")

    def _write_record(self, model, rate):
        command = {
            "argv": ["train.py", f"model={model}", f"optimizer.learning_rate={rate}"],
            "started": "2026-01-01T12:00:00+0000",
            "host": "node-1",
            "python": "3.11.7",
            "versions": {"tensorflow": "2.21.0", "steadfast": "0.1.0"},
            "git": {"sha": "0123456789abcdef", "dirty": False},
        }
        change = {"key": "seed", "before": 0, "now": self._number}
        record = {
            **command,
            "devices": ["/device:CPU:0"],
            "num_replicas": 2,
            "total_steps": self._total_lines * _STEPS_PER_LINE,
            "metrics": {"direction": {"loss": "min", "accuracy": "max"}, "primary": "accuracy"},
            "lineage": [{**command, "checkpoint": 10, "changes": [change]}],
        }
        write_json(self.path / "run.json", record, durable=False)

    def _metrics(self):
        x = self._lines / 100
        loss = 2.3 / (1 + x) + 0.02 * math.sin(self._lines * 7 + self._number)
        return {"loss": loss, "accuracy": 1 - loss / 3}

    def _line(self):
        values = {
            **self._metrics(),
            "learning_rate": _RATES[self._number % len(_RATES)],
            "examples_per_sec": 1500.0 + 100 * math.sin(self._lines),
            "gradient_norm": 1.0 + math.cos(self._lines),
            "train_secs": 0.5 * self._lines,
            "memory_mib": 350.0,
        }
        line = {"step": self.step, "split": "train", "epoch": self._lines // 100, **values}
        return json.dumps(line).encode() + b"\n"

    def _evaluation(self):
        values = {name: 1.1 * value for name, value in self._metrics().items()}
        return (
            json.dumps({"step": self.step, "split": "test", "epoch": 1, **values}).encode() + b"\n"
        )

    def _mark(self, phase, step, workers=None):
        times = {f"worker-{number}": (4.0, 0.5 + 2.0 * number, 10) for number in (0, 1)}
        now = _BEGIN + 0.6 * self._lines + sum(map(ord, phase)) / 1000
        mark = ledger.Mark(phase, step, 0.0, now, workers, times if phase == "eval" else None)
        with open(self.path / "ledger.jsonl", "a") as file:
            file.write(json.dumps(mark.content()) + "\n")


def config_text():
    """Return the configuration of a run of the digits as YAML."""
    experiment = compose([])
    assert isinstance(experiment, Experiment)
    return yaml.safe_dump(loading.plain(experiment), sort_keys=False)


def make_runs(folder, count, lines):
    """Make runs with so many lines of training each: two thirds done, others failed or stopped."""
    config = config_text()
    runs = [FakeRun(folder, number, lines, config) for number in range(count)]
    for number, run in enumerate(runs):
        for part in range(4):
            run.train(lines // 4 + (lines % 4 if part == 3 else 0))
            run.save()
            run.mark()
            if part == 1:
                run.restart()
        run.show_processes(0, "done")
        (run.finish, run.finish, run.fail, run.finish, run.finish, lambda: None)[number % 6]()
    return runs


def train_live(runs, rate, goes_on):
    """Lock runs, and add `rate` lines a second to each while `goes_on` says so."""
    with ExitStack() as locks:
        for run in runs:
            locks.enter_context(closing(Lock.acquire(lock_file(run.path))))
        for tick in range(1, 1 << 30):
            if not goes_on():
                return
            for run in runs:
                run.train(1)
                if tick % max(1, round(2 * rate)) == 0:
                    run.show_processes(None)
                    run.mark()
            time.sleep(1 / rate)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--lines", type=int, default=500, help="lines of training of each run")
    parser.add_argument("--live", type=int, default=0, help="further runs that keep training")
    parser.add_argument("--rate", type=float, default=10.0, help="their lines a second")
    args = parser.parse_args()
    make_runs(args.folder, args.runs, args.lines)
    config = config_text()
    live = [FakeRun(args.folder, args.runs + number, 10_000, config) for number in range(args.live)]
    if live:
        train_live(live, args.rate, lambda: True)


if __name__ == "__main__":
    main()
