"""Texts from a file to a trained model, by real processes that are killed."""

import json
import random

import pytest

from tests.support.processes import run

WORDS = {"good": ["fine", "great", "lovely", "warm"], "bad": ["poor", "awful", "cold", "dull"]}


@pytest.mark.slow
def test_run_on_texts_is_continued_to_the_bit_by_two_processes(tmp_path):
    """verify runs it twice, once with a kill, and compares every bit of the two."""
    choose = random.Random(0)
    rows = []
    for _ in range(120):
        label = choose.choice(sorted(WORDS))
        rows.append({"text": " ".join(choose.choices(WORDS[label], k=6)), "label": label})
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, out, err = run(
        tmp_path,
        "dataset=text", "dataset.path=rows.jsonl", "dataset.length=40", "dataset.cache_dir=cache",
        "model=text_cnn", "model.width=4", "strategy=multi_worker", "batch.global_size=16",
        "mode=verify", "verify.steps=12", "verify.kills=1", "verify.seed=2",
        "restart.backoff_secs=0",
    )  # fmt: skip
    assert code == 0, out + err
    assert "Equal: step 12, " in out
