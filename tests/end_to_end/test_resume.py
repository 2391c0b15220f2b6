"""Runs continued with another configuration, or other versions."""

import json

import pytest

from tests.support.processes import OPTIONS, log, only_run, succeed
from trainer.files import read_json, write_json


def learning_rates(run_dir):
    return {
        line["step"]: line["learning_rate"] for line in log(run_dir) if line["split"] == "train"
    }


@pytest.mark.slow
def test_changed_key_is_refused_until_allowed_and_kept_afterward(tmp_path):
    succeed(tmp_path, *OPTIONS, "train.steps=3")
    path = only_run(tmp_path)
    resume = f"resume=runs/{path.name}"
    record = read_json(path / "run.json")
    versions = {**record["versions"], "tensorflow": "1.0"}
    write_json(path / "run.json", {**record, "versions": versions})
    change = ["optimizer.learning_rate=0.01", "resume_allow=[optimizer.learning_rate]"]
    out = succeed(tmp_path, resume, "train.steps=6", *change)
    told = out.splitlines()
    assert "Changed: optimizer.learning_rate: 0.001 -> 0.01" in told
    assert (
        f"warning: this is tensorflow {record['versions']['tensorflow']}, the run had 1.0" in told
    )
    assert "Continuing from the checkpoint of step 3." in told
    out = succeed(tmp_path, resume, "train.steps=9")
    assert "Changed" not in out
    assert "warning: this is" not in out
    expected = {3: 0.001, 5: 0.01, 6: 0.01, 9: 0.01}
    assert learning_rates(path) == {step: pytest.approx(rate) for step, rate in expected.items()}
    lineage = json.loads((path / "run.json").read_text())["lineage"]
    assert [entry["checkpoint"] for entry in lineage] == [3, 6]
