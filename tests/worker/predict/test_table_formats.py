"""The columns of a table of predictions, for labels of each kind."""

from typing import Any

import numpy as np

from trainer.worker.predict.table_formats import columns


def table(names: list[str], **values: Any) -> dict[str, list[Any]]:
    """Return the columns of two rows, the second of which could not be read."""
    arrays = {"weight": np.array([1.0, 0.0], np.float32)}
    arrays |= {name: np.array(value) for name, value in values.items()}
    dtype = [(name, array.dtype, array.shape[1:]) for name, array in arrays.items()]
    rows = np.empty(2, dtype)
    for name, array in arrays.items():
        rows[name] = array
    made = columns(rows, range(2), names)
    return {
        title: [value if is_there else None for value, is_there in zip(*column, strict=True)]
        for title, column in made.items()
    }


def test_class_has_its_name_and_the_most_probable_one() -> None:
    probabilities = np.array([[0.25, 0.75], [1.0, 0.0]])
    assert table(["no", "yes"], label=[0, 1], probabilities=probabilities) == {
        "id": [0, 1], "label": [0, 1], "label_name": ["no", "yes"],
        "predicted": [1, None], "predicted_name": ["yes", None],
        "probability_0": [0.25, None], "probability_1": [0.75, None],
    }  # fmt: skip


def test_several_numbers_end_in_the_names_of_their_targets() -> None:
    label = [[2.0, 5.0], [3.0, 6.0]]
    for names, ends in ((["a", "b"], "ab"), ([], "01")):
        assert table(names, label=label, prediction=label) == {
            "id": [0, 1],
            f"target_{ends[0]}": [2.0, 3.0],
            f"target_{ends[1]}": [5.0, 6.0],
            f"prediction_{ends[0]}": [2.0, None],
            f"prediction_{ends[1]}": [5.0, None],
        }


def test_several_labels_have_a_column_each() -> None:
    found = table(
        ["a", "b"],
        label=[[0, 1], [1, 1]],
        probabilities=[[0.5, 0.25], [0.0, 0.0]],
        predicted=[[1, 0], [0, 0]],
    )
    assert found == {
        "id": [0, 1], "label_a": [0, 1], "label_b": [1, 1],
        "predicted_a": [1, None], "predicted_b": [0, None],
        "probability_a": [0.5, None], "probability_b": [0.25, None],
    }  # fmt: skip
