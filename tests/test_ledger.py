"""The ledger: where the wall time of all attempts went, whatever cut them short. The clock here goes by seconds that are told."""

import json
import subprocess
import sys
import time

import pytest

from tests.processes import ROOT
from trainer.ledger import CATEGORIES, Ledger


class Run:
    """A run of several commands: the parent and the chief make marks, and what is done between two of them takes its time."""

    def __init__(self, run_dir):
        self.run_dir, self.now, self.expected = run_dir, 1000.0, dict.fromkeys(CATEGORIES, 0.0)

    def ledger(self, **options):
        return Ledger(self.run_dir, clock=lambda: self.now, **options)

    def command(self):
        self.parent = self.ledger()
        self.parent.enter("begin")

    def attempt(self, restored, start=3.0, compile=2.0):
        """The chief starts, restores and compiles."""
        began = self.now
        self.spend("start", start)
        self.ledger().enter("start", at=began)
        self.chief = self.ledger()
        self.spend("start", 1.0)
        self.chief.enter("compile", restored)
        self.spend("compile", compile)

    def steps(self, first, last, secs=1.0, waited=0.0, counts_as=None):
        """Makes each step take so long; `counts_as`: what becomes of them."""
        for step in range(first, last):
            self.chief.enter("train", step)
            self.spend(counts_as or "step", secs - waited)
            self.spend(counts_as or "input", waited)
            self.chief.ran(step + 1, waited)

    def event(self, phase, category, step, secs):
        self.chief.enter(phase, step)
        self.spend(category, secs)

    def spend(self, category, secs):
        self.now += secs
        self.expected[category] += secs

    def restart(self, secs=2.0):
        self.parent.enter("restart")
        self.spend("restart", secs)

    def end(self, step, secs=0.5):
        self.chief.enter("end", step)
        self.spend("end", secs)
        self.parent.enter("exit")

    def summary(self):
        return self.ledger().summary()

    def check(self, attempts):
        found = self.summary()
        assert found.secs == pytest.approx(self.expected)
        assert found.wall_secs == pytest.approx(sum(self.expected.values()))
        assert found.attempts == attempts


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def test_no_ledger_is_no_time(tmp_path):
    found = Ledger(tmp_path).summary()
    assert (found.wall_secs, found.goodput, found.attempts) == (0.0, 0.0, 0)
    assert not (tmp_path / "ledger.jsonl").exists()


def test_every_second_of_an_undisturbed_run_is_in_one_category(run):
    run.command()
    run.spend("start", 0.5)
    run.attempt(0)
    run.steps(1, 10, waited=0.25)
    run.event("compile", "compile", 10, 1.5)
    run.event("evaluate", "eval", 10, 4.0)
    run.event("save", "save", 10, 0.5)
    run.steps(10, 20)
    run.end(20)
    run.check(attempts=1)
    assert run.summary().goodput == pytest.approx((9 * 0.75 + 10) / (run.now - 1000.0))


def test_steps_after_the_checkpoint_are_lost_with_what_the_attempt_did_last(run):
    run.command()
    run.attempt(0)
    run.steps(1, 8)
    run.event("save", "save", 8, 0.5)
    run.steps(8, 12, waited=0.5, counts_as="lost")
    run.event("evaluate", "lost", 12, 3.0)
    run.restart()
    run.attempt(8)
    run.steps(9, 20)
    run.end(20)
    run.check(attempts=2)


def test_an_evaluation_is_no_work_that_is_lost_unless_it_was_cut_short(run):
    run.command()
    run.attempt(0)
    run.steps(1, 8, counts_as="lost")
    run.event("evaluate", "eval", 8, 3.0)
    run.steps(8, 12, counts_as="lost")
    run.restart()
    run.attempt(0)
    run.steps(1, 12)
    run.end(12)
    run.check(attempts=2)


def test_steps_that_are_lost_more_than_once_count_once(run):
    """The newest checkpoint turns out to be damaged, and the attempt from the one before it fails early."""
    run.command()
    run.attempt(0)
    run.steps(1, 4)
    run.event("save", "save", 4, 0.5)
    run.steps(4, 8, counts_as="lost")
    run.event("save", "save", 8, 0.5)
    run.steps(8, 10, counts_as="lost")
    run.restart()
    run.attempt(8)
    run.steps(9, 11, counts_as="lost")
    run.restart()
    run.attempt(4)
    run.steps(5, 20)
    run.end(20)
    run.check(attempts=3)


def test_a_rollback_within_an_attempt_loses_the_steps_beyond(run):
    run.command()
    run.attempt(0)
    run.steps(1, 4)
    run.event("save", "save", 4, 0.5)
    run.steps(4, 9, counts_as="lost")
    run.event("compile", "compile", 4, 1.0)
    run.steps(4, 10)
    run.end(10)
    run.check(attempts=1)


def test_a_rollback_while_steps_go_on_loses_the_steps_beyond(run):
    run.command()
    run.attempt(0)
    run.steps(1, 4)
    run.steps(4, 9, counts_as="lost")
    run.steps(4, 10)
    run.end(10)
    found = run.summary()
    assert found.wall_secs == pytest.approx(run.now - 1000.0)
    assert found.secs["lost"] == pytest.approx(run.expected["lost"], abs=1.0)


def test_of_a_piece_that_is_partly_lost_the_steps_decide(run):
    run.command()
    run.attempt(0)
    run.chief.enter("train", 10)
    run.now += 4.0
    run.chief.enter("save", 20)
    run.restart(0.0)
    run.attempt(15)
    run.expected |= {"step": 2.0, "lost": 2.0 + run.expected["lost"]}
    run.end(15)
    run.check(attempts=2)


def test_an_attempt_that_fails_before_it_trains_is_lost_and_is_one(run):
    run.command()
    run.spend("lost", 2.0)  # its chief died before it could say anything
    run.restart()
    run.spend("restart", 4.0)
    run.restart()
    run.ledger().enter("start")
    run.spend("lost", 5.0)
    run.restart()
    run.attempt(0)
    run.steps(1, 3)
    run.end(3)
    run.check(attempts=4)


def test_a_restart_that_is_called_off_is_no_attempt(run):
    run.command()
    run.attempt(0)
    run.restart()
    run.parent.enter("exit")
    assert run.summary().attempts == 1


def test_the_time_between_two_commands_is_nobodys(run):
    run.command()
    run.attempt(0)
    run.steps(1, 6)
    run.event("save", "save", 6, 0.5)
    run.end(6)
    run.now += 86_400.0
    run.command()
    run.attempt(6)
    run.steps(7, 12)
    run.end(12)
    run.check(attempts=2)


@pytest.mark.parametrize("secs", [0.5, 30.0])
def test_a_killed_parent_leaves_out_some_seconds_at_the_most(run, secs):
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


def test_what_goes_on_is_marked_again_only_after_some_seconds(run):
    run.command()
    run.attempt(0)
    run.steps(1, 101, secs=0.1)
    run.end(101)
    run.check(attempts=1)
    marks = [json.loads(line) for line in (run.run_dir / "ledger.jsonl").read_text().splitlines()]
    assert [mark["does"] for mark in marks] == ["begin", "start", "compile", "step", "step", "end", "exit"]
    assert [list(mark) for mark in marks] == [["does", "step", "waited", "at"]] * 7


def test_who_writes_sees_the_account_up_to_now(run):
    run.command()
    run.attempt(0)
    run.steps(1, 3, waited=0.5)
    assert run.chief.summary().secs == pytest.approx(run.expected)
    assert run.chief.summary().goodput == pytest.approx(1.0 / 8.0)
    assert run.summary().wall_secs == pytest.approx(6.0)


def test_whoever_is_not_the_chief_writes_nothing(tmp_path):
    ledger = Ledger(tmp_path, writes=False)
    ledger.enter("train", 3)
    ledger.ran(4, 1.0)
    assert ledger.summary().wall_secs == 0.0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cut_off", ['{"does": "sa', '{"does": "save"}', "7", "\x00\x00"])
def test_a_line_that_a_kill_cut_off_is_left_out_and_swallows_no_other(run, cut_off):
    run.command()
    run.attempt(0)
    run.steps(1, 4)
    run.event("save", "lost", 4, 1.0)
    with (run.run_dir / "ledger.jsonl").open("a") as file:
        file.write(cut_off)
    run.restart()
    run.attempt(4)
    run.steps(5, 9)
    run.end(9)
    run.check(attempts=2)


def test_a_directory_that_is_gone_stops_nobody(tmp_path):
    ledger = Ledger(tmp_path / "gone")
    ledger.enter("begin")
    assert not (tmp_path / "gone").exists()


def test_the_start_of_a_process_lies_between_that_of_its_maker_and_now():
    before = time.time()
    code = "import time; from trainer.ledger import process_start; print(process_start(), time.time())"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    began, now = map(float, out.split())
    assert before - 0.02 <= began <= now  # the system counts in hundredths


def test_a_clock_that_is_set_back_makes_no_time_negative(run):
    run.command()
    run.attempt(0)
    run.steps(1, 3)
    run.now -= 500.0
    run.end(3)
    found = run.summary()
    assert min(found.secs.values()) >= 0.0
