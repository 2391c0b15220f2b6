"""What of an experiment's step depends on the layout."""

import pytest

from tests.support.training import engine
from trainer.worker.modes.layout_findings import findings


@pytest.mark.parametrize("shards", [4, None])
def test_nothing_is_found_in_what_steadfast_itself_draws(tmp_path, shards):
    run = engine(
        tmp_path,
        "model._target_=tests.support.toy_models.everything",
        "model.dropout=0.3",
        "model.batch_norm=true",
        "dataset._target_=tests.support.toy_datasets.waves",
        "augment.crop=1",
        "batch.accumulate=2",
        f"batch.shards={shards or 'null'}",
    )
    assert findings(run, sharded=shards is not None) == []
