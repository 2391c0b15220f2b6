"""What a training shows: read back from its files with TensorBoard's own reader."""

import json
import signal

import numpy as np
import pytest
import yaml
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from tests.processes import OPTIONS, final_variables, only_run, run, signaller
from tests.training import engine


def shown(run_dir, folder):
    """Gives tag -> [(step, content)] of a folder of events, as TensorBoard shows them, and its reader."""
    reader = EventAccumulator(str(run_dir / "events" / folder), size_guidance={"tensors": 0}).Reload()
    contents = {tag: [(event.step, make_ndarray(event.tensor_proto)) for event in reader.Tensors(tag)] for tag in reader.Tags()["tensors"]}
    return contents, reader


def lines(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def assert_same_figures(run_dir):
    """Compares every figure in metrics.jsonl with TensorBoard's: none is missing, none stands there twice."""
    for split, folder in (("train", "train"), ("test", "eval")):
        logged = [line for line in lines(run_dir) if line["split"] == split]
        contents, _ = shown(run_dir, folder)
        for name in {name for line in logged for name in line} - {"step", "split"}:
            expected = [(line["step"], np.float32(line[name])) for line in logged if name in line]
            assert [(step, np.float32(value)) for step, value in contents[name]] == expected, name


@pytest.mark.slow
def test_two_workers_and_a_kill_leave_one_whole_story(tmp_path):
    wanted = ["summary.histograms=6", "summary.images=8", "summary.graph=true", "summary.profile={start: 20, steps: 3}"]
    more = ["strategy=multi_worker", "strategy.workers=2", signaller(tmp_path, [12], signal.SIGKILL)]
    code, out, err = run(tmp_path, *OPTIONS, *more, *wanted)
    assert code == 0, err
    path = only_run(tmp_path)
    assert_same_figures(path)
    contents, reader = shown(path, "train")

    logged = [line for line in lines(path) if line["split"] == "train"]
    assert [line["step"] for line in logged] == [5, 10, 15, 20, 24]
    assert all(line["gradient_norm"] > 0 and 50 < line["memory_mib"] < 50_000 for line in logged)

    # The last histogram shows the weights as they are in the end.
    histograms = [tag for tag in contents if tag.startswith(("weights/", "gradients/"))]
    assert {tag.partition("/")[2] for tag in histograms if tag.startswith("weights/")} >= {"hidden/kernel", "logits/bias"}
    assert all([step for step, _ in contents[tag]] == [6, 12, 18, 24] for tag in histograms)
    (kernel,) = [value for name, value in final_variables(path).items() if name.startswith("models/") and value.shape[1:] == (10,)]
    _, buckets = contents["weights/logits/kernel"][-1]
    assert (buckets[0, 0], buckets[-1, 1], buckets[:, 2].sum()) == (pytest.approx(kernel.min()), pytest.approx(kernel.max()), kernel.size)

    assert [(step, images[:2].tolist(), len(images)) for step, images in contents["inputs"]] == [
        (step, [b"8", b"8"], 2 + 8) for step in (8, 16, 24)
    ]
    ((_, config),) = contents["config"]
    text = config.item().decode()
    assert yaml.safe_load(text.removeprefix("```yaml\n").removesuffix("```"))["summary"]["histograms"] == 6
    ((_, overrides),) = contents["overrides"]
    assert "strategy=multi_worker" in overrides.item().decode().splitlines()
    assert any("MatMul" in node.name for function in reader.Graph().library.function for node in function.node_def) or any(
        "MatMul" in node.name for node in reader.Graph().node
    )
    assert "The profile from step 20 on is in" in out
    assert list((path / "events" / "train" / "plugins" / "profile").glob("*/*.xplane.pb"))


def test_a_call_ends_where_something_is_looked_at_or_recorded(tmp_path):
    made = engine(tmp_path, "summary.histograms=3", "summary.images=5", "summary.profile.start=1", "summary.profile.steps=6")
    stops, step = [], 0
    while step < 8:
        stops.append(step := made.plan.next_event(step))
    assert stops == [1, 3, 5, 6, 7, 8]
    assert [step for step in stops if made.plan.event_at(step)] == [3, 5, 6, 8]


def test_what_is_off_leaves_nothing(tmp_path):
    made = engine(tmp_path, "summary.writers=[tensorboard]")
    made.train(lambda: False)
    contents, reader = shown(tmp_path, "train")
    scalars = {"accuracy", "epoch", "examples_per_sec", "goodput", "gradient_norm", "input_wait_fraction", "learning_rate", "loss"}
    assert contents.keys() == scalars | {"memory_mib"}
    assert reader.Tags()["graph"] is False
    assert not (tmp_path / "events" / "train" / "plugins").exists()
