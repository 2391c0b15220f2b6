"""The summaries of a training, read back from its files with TensorBoard's own reader."""

import itertools
import json
import logging
import signal

import numpy as np
import pytest
import yaml
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from tests.support.processes import OPTIONS, final_variables, only_run, run, signaler
from tests.support.training import SMALL, engine
from trainer.cli.compose import compose
from trainer.cluster.messages import Channel, Evaluated
from trainer.summaries.writers.tensorboard import scalar_tag
from trainer.worker.building import build


def read_events(run_dir):
    """Return tag -> [(step, content)] of the events of a run, and TensorBoard's reader of them."""
    reader = EventAccumulator(str(run_dir / "events"), size_guidance={"tensors": 0}).Reload()
    contents = {
        tag: [(event.step, make_ndarray(event.tensor_proto)) for event in reader.Tensors(tag)]
        for tag in reader.Tags()["tensors"]
    }
    return contents, reader


def lines(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def assert_same_metrics(run_dir):
    """Compare metrics.jsonl with TensorBoard: no value is missing, none is there twice."""
    contents, _ = read_events(run_dir)
    for split, others in (("train", {"step", "split"}), ("test", {"step", "split", "epoch"})):
        logged = [line for line in lines(run_dir) if line["split"] == split]
        for name in {name for line in logged for name in line} - others:
            expected = [(line["step"], np.float32(line[name])) for line in logged if name in line]
            points = contents[scalar_tag(split, name)]
            assert [(step, np.float32(value)) for step, value in points] == expected, name


def assert_histograms_end_with_final_weights(run_dir, contents, steps):
    """Check that all histograms are of these steps, and the last one of the final weights."""
    histograms = [tag for tag in contents if tag.startswith(("weights/", "gradients/"))]
    assert {tag.partition("/")[2] for tag in histograms if tag.startswith("weights/")} >= {
        "hidden/kernel",
        "logits/bias",
    }
    assert all([step for step, _ in contents[tag]] == steps for tag in histograms)
    (kernel,) = [
        value
        for name, value in final_variables(run_dir).items()
        if name.startswith("models/") and value.shape[1:] == (10,)
    ]
    _, buckets = contents["weights/logits/kernel"][-1]
    assert (buckets[0, 0], buckets[-1, 1], buckets[:, 2].sum()) == (
        pytest.approx(kernel.min()),
        pytest.approx(kernel.max()),
        kernel.size,
    )


@pytest.mark.long
def test_events_are_complete_after_kill_with_two_workers(tmp_path):
    summaries = [
        "summary.histograms=6",
        "summary.images=8",
        "summary.graph=true",
        "summary.profile={start: 20, steps: 3}",
    ]
    cluster = [
        "strategy=multi_worker",
        "strategy.workers=2",
        signaler(tmp_path, [12], signal.SIGKILL),
    ]
    code, out, err = run(tmp_path, *OPTIONS, *cluster, *summaries)
    assert code == 0, err
    path = only_run(tmp_path)
    assert_same_metrics(path)
    contents, reader = read_events(path)

    logged = [line for line in lines(path) if line["split"] == "train"]
    assert [line["step"] for line in logged] == [5, 10, 15, 20, 24]
    assert all(line["gradient_norm"] > 0 and 50 < line["memory_mib"] < 50_000 for line in logged)

    assert_histograms_end_with_final_weights(path, contents, [6, 12, 18, 24])
    assert [
        (step, images[:2].tolist(), len(images)) for step, images in contents["pictures/inputs"]
    ] == [(step, [b"8", b"8"], 2 + 8) for step in (8, 16, 24)]
    ((_, config),) = contents["config"]
    text = config.item().decode()
    assert (
        yaml.safe_load(text.removeprefix("```yaml\n").removesuffix("```"))["summary"]["histograms"]
        == 6
    )
    ((_, overrides),) = contents["overrides"]
    assert "strategy=multi_worker" in overrides.item().decode().splitlines()
    assert any(
        "MatMul" in node.name
        for function in reader.Graph().library.function
        for node in function.node_def
    ) or any("MatMul" in node.name for node in reader.Graph().node)
    assert "The profile from step 20 on is in" in out
    assert list((path / "events" / "plugins" / "profile").glob("*/*.xplane.pb"))


def test_graph_call_ends_at_inspected_and_profiled_steps(tmp_path):
    built = engine(
        tmp_path,
        "summary.every_steps=8",
        "summary.histograms=3",
        "summary.images=5",
        "summary.profile.start=1",
        "summary.profile.steps=6",
        "train.steps_per_loop=8",
    )
    run = built.loop.run
    counts = []
    built.loop.run = lambda iterator, count: counts.append(int(count)) or run(iterator, count)
    assert built.train(lambda: False)
    assert list(itertools.accumulate(counts)) == [1, 3, 5, 6, 7, 8]


def test_results_are_a_line_for_the_user_and_the_tutorials_line_in_the_log(tmp_path, caplog):
    every = ["train.steps_per_epoch=4", "summary.every_steps=2", "evaluate.every_steps=2"]
    messages = []
    for steps in (8, 12):  # the second continues
        options = compose([*SMALL, *every, f"train.steps={steps}"])
        with caplog.at_level(logging.INFO, "trainer.cluster.messages"):
            build.engine(options, tmp_path, Channel(messages.append)).train(lambda: False)
    windows = [line for line in lines(tmp_path) if line["split"] == "train"]
    tests = [line for line in lines(tmp_path) if line["split"] == "test"]
    for first, second in zip(windows[::2], windows[1::2], strict=True):
        for name in ("loss", "accuracy"):  # a line at the end of an epoch is about all of it
            second[name] = (first[name] + second[name]) / 2
    best, expected = 0.0, []
    for train, test in zip(windows, tests, strict=True):
        line = " ".join(
            f" {name} {values['loss']:.4f} {values['accuracy']:.3f}"
            for name, values in (("train", train), ("test", test))
        )
        step, steps = test["step"], 8 if test["step"] <= 8 else 12
        mark = "  best" if test["accuracy"] > best else ""
        expected.append(f"step {step:>{len(str(steps))}}/{steps} {line}{mark}")
        best = max(best, test["accuracy"])
    assert [message.text for message in messages if isinstance(message, Evaluated)] == expected
    assert [text for text in caplog.messages if text.startswith("Epoch: ")] == [
        f"Epoch: {epoch}, accuracy: {line['accuracy']:f}, train_loss: {line['loss']:f}."
        for epoch, line in enumerate(windows[1::2])
    ]


@pytest.mark.slow
def test_disabled_summaries_write_nothing(tmp_path):
    engine(tmp_path, "writers=[tensorboard]").train(lambda: False)
    contents, reader = read_events(tmp_path)
    metrics = itertools.product(("accuracy", "loss"), ("test", "train"))
    assert contents.keys() == {
        *(f"metrics/{name}/{split}" for name, split in metrics),
        "optimizer/gradient_norm", "optimizer/learning_rate", "system/memory_mib", "time/epoch",
        "time/examples_per_sec", "time/goodput", "time/input_wait_fraction", "time/train_secs",
        "custom_scalars__config__", "_hparams_/session_start_info",
    }  # fmt: skip
    assert reader.Tags()["graph"] is False
    assert not (tmp_path / "events" / "plugins").exists()
