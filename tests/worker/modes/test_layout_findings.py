"""What of an experiment's step depends on the layout."""

import pytest

from tests.support.training import engine
from trainer.worker.modes.layout_findings import findings


@pytest.mark.slow
def test_nothing_is_found_in_what_steadfast_itself_draws(tmp_path):
    run = engine(
        tmp_path,
        "model._target_=tests.support.toy_models.everything",
        "model.dropout=0.3",
        "model.batch_norm=true",
        "dataset._target_=tests.support.toy_datasets.waves",
        "augment.crop=1",
        "batch.accumulate=2",
        "batch.shards=4",
    )
    assert findings(run, sharded=True) == []
