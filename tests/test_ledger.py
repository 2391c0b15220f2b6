"""The ledger: where the wall time of all attempts went, whatever cut them short."""

import json

from trainer.ledger import Ledger


def write(run_dir, *entries, cut_off=""):
    lines = [json.dumps({"event": event, "step": 0, "secs": secs, "at": at}) + "\n" for event, secs, at in entries]
    with (run_dir / "ledger.jsonl").open("a") as file:
        file.write("".join(lines) + cut_off)


def test_no_ledger_is_no_time(tmp_path):
    ledger = Ledger(tmp_path)
    assert (ledger.entries(), ledger.attempts(), ledger.wall_secs()) == ([], 0, 0.0)


def test_an_entry_has_event_step_and_time(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.add("save", 12, 0.25)
    (entry,) = ledger.entries()
    assert list(entry) == ["event", "step", "secs", "at"]
    assert (entry["event"], entry["step"], entry["secs"]) == ("save", 12, 0.25)


def test_a_timed_block_is_entered_when_it_ends(tmp_path):
    ledger = Ledger(tmp_path)
    with ledger.timed("eval", 5):
        assert ledger.entries() == []
    (entry,) = ledger.entries()
    assert (entry["event"], entry["step"]) == ("eval", 5)
    assert entry["secs"] >= 0


def test_one_attempt_counts_from_its_start_to_its_last_entry(tmp_path):
    write(tmp_path, ("start", 4.0, 1004.0), ("first_step", 2.0, 1007.0), ("save", 0.5, 1060.0))
    assert Ledger(tmp_path).attempts() == 1
    assert Ledger(tmp_path).wall_secs() == 60.0


def test_the_pause_between_attempts_does_not_count(tmp_path):
    write(tmp_path, ("start", 5.0, 105.0), ("save", 1.0, 120.0), ("start", 5.0, 9005.0), ("save", 1.0, 9010.0))
    assert Ledger(tmp_path).attempts() == 2
    assert Ledger(tmp_path).wall_secs() == 20.0 + 10.0


def test_an_attempt_killed_at_its_start_counts_its_start(tmp_path):
    write(tmp_path, ("start", 5.0, 105.0), ("start", 3.0, 203.0), ("save", 1.0, 210.0))
    assert Ledger(tmp_path).wall_secs() == 5.0 + 10.0


def test_a_last_line_that_a_kill_cut_off_is_left_out(tmp_path):
    write(tmp_path, ("start", 5.0, 105.0), ("save", 1.0, 120.0), cut_off='{"event": "sa')
    ledger = Ledger(tmp_path)
    assert [entry["event"] for entry in ledger.entries()] == ["start", "save"]
    assert ledger.wall_secs() == 20.0


def test_the_attempt_after_a_cut_off_line_loses_no_entry(tmp_path):
    write(tmp_path, ("start", 5.0, 105.0), ("save", 1.0, 120.0), cut_off='{"event": "sa')
    ledger = Ledger(tmp_path)
    ledger.add("start", 3)
    ledger.add("save", 4)
    assert [entry["event"] for entry in ledger.entries()] == ["start", "save", "start", "save"]
    assert ledger.attempts() == 2
