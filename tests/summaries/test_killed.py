"""After three kills of a training of two processes, every writer has every point once."""

import json

import numpy as np
import pytest
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext

from tests.support import tracked
from tests.support.processes import only_run, run
from trainer.summaries.writers.tensorboard import scalar_tag

KILLS = [
    # After a save, right before one counts, and while it is evaluated; the chief and another.
    "+fault.first={action:kill,process:chief,phase:step,at:13}",
    "+fault.second={action:kill,process:worker-1,phase:step,at:17}",
    "+fault.third={action:kill,process:chief,phase:save,at:2}",
]
OPTIONS = [
    "strategy=multi_worker", "model=softmax", "train.steps=30", "train.steps_per_loop=1",
    "batch.global_size=16", "summary.every_steps=2", "evaluate.every_steps=4",
    "evaluate.every_epochs=null", "checkpoint.every_steps=6", "checkpoint.every_epochs=null",
    # In the background the second save could be under way at the kill at step 13.
    "restart.backoff_secs=0", "checkpoint.async_write=false",
]  # fmt: skip


@pytest.mark.slow
def test_every_writer_has_every_point_once_after_three_kills(tmp_path):
    code, out, err = run(tmp_path, *OPTIONS, *KILLS)
    assert code == 0, out + err
    run_dir = only_run(tmp_path)
    assert json.loads((run_dir / "result.json").read_text())["attempts"] == 4, out
    expected = tracked.of_jsonl(run_dir)
    assert [step for step, _ in expected["train/loss"]] == list(range(2, 31, 2))
    assert [step for step, _ in expected["test/loss"]] == [4, 8, 12, 16, 20, 24, 28, 30]
    assert in_tensorboard(run_dir) == {
        scalar_tag(*name.split("/")): [(step, float(np.float32(value))) for step, value in points]
        for name, points in expected.items()
        if name != "test/epoch"
    }


def in_tensorboard(run_dir):
    """Return the curves, by tag, as TensorBoard's Scalars tab reads them."""
    multiplexer = (
        EventMultiplexer(size_guidance={}).AddRunsFromDirectory(str(run_dir / "events")).Reload()
    )
    provider, context = MultiplexerDataProvider(multiplexer, str(run_dir)), RequestContext()
    shown = provider.read_scalars(
        context, experiment_id="", plugin_name="scalars", downsample=10_000
    )
    return {
        tag: [(point.step, point.value) for point in points] for tag, points in shown["."].items()
    }
