"""The ledger: wall time of all attempts, and of workers. The clock is set by the tests."""

import json

import pytest

from trainer.runs.ledger import (
    CATEGORIES,
    Ledger,
    StragglerWatch,
    WorkerRecord,
    WorkerTime,
)


class Run:
    """A run of several commands, whose parent and chief make marks and spend time in between."""

    def __init__(self, run_dir):
        self.run_dir = run_dir
        self.now = 1000.0
        self.expected = dict.fromkeys(CATEGORIES, 0.0)

    def ledger(self, **options):
        return Ledger(self.run_dir, clock=lambda: self.now, **options)

    def command(self):
        self.parent = self.ledger()
        self.parent.mark("begin")

    def attempt(self, restored, start=3.0, compile=2.0):
        """Let the chief start, restore and compile."""
        began = self.now
        self.spend("start", start)
        self.ledger().mark("start", at=began)
        self.chief = self.ledger()
        self.spend("start", 1.0)
        self.chief.mark("compile", restored)
        self.spend("compile", compile)

    def steps(self, first, last, secs=1.0, input_secs=0.0, counts_as=None):
        """Run steps of `secs` each; `counts_as` is their category, if not `step` and `input`."""
        for step in range(first, last):
            self.chief.mark("train", step)
            self.spend(counts_as or "step", secs - input_secs)
            self.spend(counts_as or "input", input_secs)
            self.chief.record_step(step + 1, input_secs)

    def event(self, phase, category, step, secs):
        self.chief.mark(phase, step)
        self.spend(category, secs)

    def spend(self, category, secs):
        self.now += secs
        self.expected[category] += secs

    def restart(self, secs=2.0):
        self.parent.mark("restart")
        self.spend("restart", secs)

    def end(self, step, secs=0.5):
        self.chief.mark("end", step)
        self.spend("end", secs)
        self.parent.mark("exit")

    def summary(self):
        return self.ledger().summary()

    def check(self, attempts):
        summary = self.summary()
        assert summary.secs == pytest.approx(self.expected)
        assert summary.wall_secs == pytest.approx(sum(self.expected.values()))
        assert summary.attempts == attempts


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def test_summary_has_every_second_of_an_undisturbed_run(run):
    run.command()
    run.spend("start", 0.5)
    run.attempt(0)
    run.steps(1, 10, input_secs=0.25)
    run.event("compile", "compile", 10, 1.5)
    run.event("evaluate", "eval", 10, 4.0)
    run.event("save", "save", 10, 0.5)
    run.steps(10, 20)
    run.end(20)
    run.check(attempts=1)
    others = Ledger(run.run_dir / "none", writes=False)
    others.mark("train", 3)
    Ledger(run.run_dir / "none").mark("begin")
    assert not (run.run_dir / "none").exists()
    assert (others.summary().wall_secs, others.summary().goodput) == (0.0, 0.0)
    assert run.summary().goodput == pytest.approx((9 * 0.75 + 10) / (run.now - 1000.0))


def test_lost_work_is_steps_after_the_checkpoint_once_and_the_last_phase(run):
    """The newest checkpoint is damaged, and the attempt from the one before it fails early."""
    run.command()
    run.attempt(0)
    run.steps(1, 4)
    run.event("save", "save", 4, 0.5)
    run.steps(4, 8, counts_as="lost")
    run.event("evaluate", "eval", 8, 3.0)  # it is finished
    run.event("save", "save", 8, 0.5)
    run.steps(8, 10, input_secs=0.5, counts_as="lost")
    run.event("evaluate", "lost", 10, 3.0)
    run.restart()
    run.attempt(8)
    run.steps(9, 11, counts_as="lost")
    run.restart()
    run.attempt(4)
    run.steps(5, 9)
    run.event("save", "save", 9, 0.5)
    run.steps(9, 12, counts_as="lost")
    run.event("compile", "compile", 9, 1.0)  # a rollback
    run.steps(9, 20)
    run.end(20)
    run.now += 86_400.0  # between two commands
    run.command()
    run.attempt(20)
    run.steps(21, 25, counts_as="lost")
    run.restart()
    run.parent.mark("exit")  # the restart was cancelled
    run.check(attempts=4)
    run.command()
    run.attempt(20)
    assert run.summary().restarts == [8, 4]


def test_failures_are_attempts_that_neither_ended_nor_saved_on_request(run):
    run.command()
    run.restart()  # before the chief's first mark
    run.attempt(0)
    for phase in ("save", "evaluate", "save"):
        run.event(phase, "lost", 3, 0.5)
    run.restart()
    run.attempt(3)
    run.chief.mark("end", 3)  # the cluster grows
    run.restart()
    run.attempt(3)
    run.end(3)
    run.command()  # is killed
    run.command()
    run.parent.mark("exit")  # by its own mistake
    run.command()
    assert (run.summary().failures, run.summary().saves) == (3, 2)


def test_summary_after_a_killed_parent_lacks_a_few_seconds(run):
    secs = 0.5
    run.command()
    run.attempt(0)
    run.steps(1, 4)
    run.event("save", "save", 4, 0.5)
    run.steps(4, 100, secs=secs, counts_as="lost")
    known = run.summary().wall_secs
    assert 0 <= (run.now - 1000.0) - known <= max(5.0, secs)
    run.expected["lost"] -= run.now - 1000.0 - known
    run.now += 600.0
    run.command()
    run.attempt(4)
    run.steps(5, 9)
    run.end(9)
    run.check(attempts=2)


@pytest.mark.parametrize("rest", [b"", b"\0" * 40, b'"worker_times": [1]}', b"\n7"])
def test_ledger_cut_off_anywhere_keeps_whole_lines_and_those_after(run, rest):
    run.command()
    run.attempt(0)
    file = run.run_dir / "ledger.jsonl"
    content = file.read_bytes()

    def after(left):
        file.write_bytes(left)
        for phase in ("begin", "start", "restart"):
            run.ledger().mark(phase)
        return run.summary()

    for length in range(len(content)):
        end = content.rfind(b"\n", 0, length) + 1
        if content[length] == ord("\n") and rest in (b"", b"\n7"):
            end = length + 1  # the line is whole, but for its end
        assert after(content[:length] + rest) == after(content[:end])


def test_steps_that_memory_has_kept_are_no_lost_work(run):
    run.command()
    run.attempt(0)
    run.chief.mark("train", 1)
    run.spend("step", 4.0)  # is killed after step 9; step 1 was the last that was marked
    run.restart()
    run.ledger().mark("start")
    run.spend("start", 1.0)
    run.chief = run.ledger()
    run.chief.record_repeated(0)
    run.chief.mark("compile", 9)
    run.spend("compile", 1.0)
    run.chief.mark("train", 9)
    run.spend("step", 3.0)
    run.spend("lost", 1.0)  # of four steps three are kept
    run.restart()
    run.ledger().mark("start")
    run.chief = run.ledger()
    run.chief.record_repeated(1)
    run.chief.mark("train", 12)
    run.spend("step", 2.0)
    run.end(14)
    run.check(attempts=3)


def record(*times, asynchronous=False):
    return WorkerRecord(
        {f"worker-{number}": WorkerTime(*time) for number, time in enumerate(times)}, asynchronous
    )


@pytest.mark.parametrize(
    ("workers", "line"),
    [
        (record((2.0, 8.0, 100), (9.0, 1.0, 100), (4.0, 6.0, 100)),
         "worker-1 is the slowest: the others wait 60 % of the time for it"),
        (record((5.0, 0.0, 500), (5.0, 0.0, 50), asynchronous=True),
         "worker-1 is the slowest: 100 ms a step, the others 10 ms; no process waits for it"),
        (record(), None),
        (record((5.0, 5.0, 100), (4.0, 6.0, 100)), None),
        (record((5.0, 0.0, 100), (6.0, 0.0, 120), asynchronous=True), None),
        (record((0.0, 5.0, 0), (5.0, 0.0, 100), asynchronous=True), None),
    ],
)  # fmt: skip
def test_straggler_is_the_worker_that_the_others_wait_for(workers, line):
    assert workers.straggler() == line


def test_straggler_is_reported_once_and_after_enough_time():
    watch = StragglerWatch()
    slow, even = record((1.0, 2.0, 10), (3.0, 0.0, 10)), record((3.0, 0.0, 10), (3.0, 0.0, 10))
    told = [watch.line(item) for item in [slow, slow, slow, slow, even, even, slow, slow]]
    assert [line is not None for line in told] == [False, True, *[False] * 5, True]


def test_ledger_adds_up_what_workers_did_over_all_attempts(tmp_path):
    for attempt in range(2):
        ledger = Ledger(tmp_path)
        ledger.mark("start", workers=2)
        ledger.mark("train", 10 * attempt)
        ledger.record_workers(record((1.0, 2.0, 5), (3.0, 0.0, 5), asynchronous=True))
        ledger.record_workers(record((1.0, 2.0, 5), (3.0, 0.0, 5), asynchronous=True))
        ledger.mark("end", 10 * attempt + 10)
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert [line.get("worker_times") for line in lines] == [
        *[None, None, {"worker-0": [2.0, 4.0, 10], "worker-1": [6.0, 0.0, 10]}] * 2
    ]
    summary = Ledger(tmp_path, writes=False).summary()
    assert summary.workers == record((4.0, 8.0, 20), (12.0, 0.0, 20), asynchronous=True)
    result = summary.result()
    assert result["worker_times"]["worker-0"] == {"step_secs": 4.0, "wait_secs": 8.0, "steps": 20}
    assert "worker_times" not in Ledger(tmp_path / "one").summary().result()
    total = record((1.0, 2.0, 10)) + record((3.0, 4.0, 5), (1.0, 1.0, 5))
    assert total.times == record((4.0, 6.0, 15), (1.0, 1.0, 5)).times
