from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from trainer.datasets.splits.arrays import ArraySplit, check_pair, read_npz

FEATURES = np.arange(5 * 2 * 2 * 1, dtype=np.uint8).reshape(5, 2, 2, 1)
LABELS = np.array([4, 3, 2, 1, 0], np.uint8)


def test_fetch_returns_the_examples_at_the_indices_in_order() -> None:
    split = ArraySplit(FEATURES, LABELS)
    batch = split.fetch(tf.constant([3, 0, 3], tf.int64))
    np.testing.assert_array_equal(batch["features"], FEATURES[[3, 0, 3]])
    np.testing.assert_array_equal(batch["label"], [1, 4, 1])
    assert (batch["features"].dtype, batch["label"].dtype) == (tf.uint8, tf.int64)
    assert (split.num_examples, split.in_memory) == (5, True)


def test_graphs_capture_the_data_once_by_reference() -> None:
    split = ArraySplit(FEATURES, LABELS)
    graphs = [
        tf.function(split.fetch).get_concrete_function(tf.TensorSpec([2], tf.int64))
        for _ in range(2)
    ]
    captured = [{id(tensor) for tensor in graph.captured_inputs} for graph in graphs]
    assert captured[0] == captured[1]
    assert len(captured[0]) == 2


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 cut short"])
def test_read_npz_refuses_other_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"cannot be read as an \.npz file") as caught:
        read_npz(tmp_path / "a.npz", ("x",))
    assert "\n" not in str(caught.value)


def test_read_npz_never_unpickles(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{}], object))
    with pytest.raises(ValueError, match="Object arrays cannot be loaded when allow_pickle=False"):
        read_npz(tmp_path / "a.npz", ("x",))


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (FEATURES[..., 0], LABELS, r"data: images are \[5, 2, 2\] uint8,.*\[N, 2, 2, 1\] uint8"),
        (FEATURES.astype(np.float32), LABELS, r"data: images are \[5, 2,.*float32, they must be"),
        (FEATURES[:0], LABELS[:0], "data: there are no images"),
        (FEATURES, LABELS[:3], r"data: labels are \[3\] uint8, they must be \[5\] integers"),
        (FEATURES, LABELS.astype(np.float32), r"data: labels are \[5\] float32"),
        (FEATURES, LABELS + 6, r"data: labels go from 6 to 10, they must be in 0\.\.9"),
        (FEATURES, LABELS.astype(np.int64) - 1, r"data: labels go from -1 to 3"),
    ],
)
def test_check_pair_names_what_is_wrong(
    features: np.ndarray, labels: np.ndarray, message: str
) -> None:
    check_pair("data", FEATURES, LABELS, (2, 2, 1), 10)
    with pytest.raises(ValueError, match=message):
        check_pair("data", features, labels, (2, 2, 1), 10)
