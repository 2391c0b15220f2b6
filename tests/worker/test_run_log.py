"""Copies of the log on hosts that share no folder."""

import json

from tests.support.process_groups import in_processes
from trainer.worker.run_log import complete_log


def line(step, split="train"):
    return json.dumps({"step": step, "split": split, "loss": step / 3})


LINES = [line(5), line(8), line(8, "test"), line(9), line(10)]


def test_each_process_gets_the_lines_that_it_lacks_up_to_the_position(tmp_path):
    # Of a chief that was replaced, with the last upload in the middle of a step; of a process that
    # was replaced before; of one that was not.
    for number, lines in enumerate((LINES[:2], [], LINES)):
        (tmp_path / f"log-{number}").write_text("".join(f"{text}\n" for text in lines))
    in_processes(3, lambda group: complete_log(tmp_path / f"log-{group.index}", 9, group))
    for number in range(2):
        assert (tmp_path / f"log-{number}").read_text().splitlines() == LINES[:4]
    assert (tmp_path / "log-2").read_text().splitlines() == LINES
