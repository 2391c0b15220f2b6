"""Predictions of texts: of a file without labels, and by an export that takes strings."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import trainer.datasets.sentiment
from tests.support.outputs import export_run, predicted_rows, run_program_of_card, served
from tests.support.training import SHORT, short_engine

SENTIMENT = Path(str(trainer.datasets.sentiment.__file__)).with_name("sentiment.csv")
LENGTH = 40  # most of the sentences are longer
NEW = ["the soup was never cold", "as always, naïve", "", "x" * 60, "null \0 byte"]


@pytest.mark.slow
def test_texts_without_labels_have_the_same_predictions_when_served(tmp_path):
    trained = [
        "dataset=text", f"dataset.path={SENTIMENT}", f"dataset.length={LENGTH}",
        f"dataset.cache_dir={tmp_path / 'cache'}", "model=text_cnn", "model.width=8",
    ]  # fmt: skip
    run_dir = tmp_path / "run"
    short_engine(run_dir, *trained).train(lambda: False)
    new = tmp_path / "new.jsonl"
    new.write_text("\n".join(json.dumps({"text": text}) for text in NEW))
    options = [*SHORT, *trained, f"batch.global_size={len(NEW)}"]
    rows = predicted_rows(run_dir, [*options, f"dataset.test_path={new}"])
    probabilities = ["probability_0", "probability_1"]
    assert list(rows[0]) == ["id", "predicted", "predicted_name", *probabilities]
    directory = export_run(run_dir, *SHORT, *trained)
    outputs = served(directory, "serving_texts")(texts=tf.constant(NEW))
    expected = [[row[name] for name in probabilities] for row in rows]
    np.testing.assert_array_equal(outputs["probabilities"], np.array(expected, np.float32))
    np.testing.assert_array_equal(outputs["label"], [int(row["predicted"]) for row in rows])
    card = (directory / "MODEL_CARD.md").read_text()
    assert "`features`, [N, 40] float32, the tokens of a text by the tokenizer bytes, each" in card
    _, printed = run_program_of_card(directory)
    assert "probabilities" in printed
