"""The directions of the metrics of a run, as its record tells them."""

from pathlib import Path

import yaml

from trainer.runs import metric_directions


def test_run_of_a_target_that_has_moved_keeps_its_directions(tmp_path: Path) -> None:
    config = {"metrics": None, "task": {"_target_": "trainer.tasks.impala.Impala"}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    assert metric_directions.read(tmp_path).primary == "return"
