"""The cause of an error in one line, without what TensorFlow and Keras put around it."""

import pytest

from trainer.errors import NonFiniteError
from trainer.worker.error_summary import error_cause, user_traceback

IN_A_LAYER = (
    "Exception encountered when calling layer 'l' (type L).\n\nboom\nmore\n\n"
    "Call arguments received by layer 'l':\n  • x=3\n"
)
IN_A_GRAPH = (
    'in user code:\n\n    File "m.py", line 3, in call  *\n        raise KeyError("k")\n\n'
    "    KeyError: 'k'\n"
)
BOTH = (
    'in user code:\n\n    File "m.py", line 9, in f\n\n'
    f"    ValueError: {IN_A_LAYER.replace('boom', IN_A_GRAPH)}"
)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("boom\nmore"), "ValueError: boom"),
        (NonFiniteError("the loss became nan"), "the loss became nan"),
        (ValueError(IN_A_LAYER), "ValueError: boom"),
        (ValueError(IN_A_GRAPH), "KeyError: 'k'"),
        (ValueError(BOTH), "KeyError: 'k'"),
        (
            RuntimeError("{{function_node __inference_f_53}} indices = 3\n\t [[{{node Gather}}]]"),
            "RuntimeError: indices = 3",
        ),
    ],
)
def test_cause_of_an_error_is_one_line(error, line):
    assert error_cause(error) == line


@pytest.mark.parametrize("folder", ["importlib_demo", "my-site-packages", "trainer"])
def test_frames_of_a_user_whose_folder_is_named_like_a_library_stay(folder, tmp_path):
    file = tmp_path / folder / "net.py"
    with pytest.raises(KeyError) as caught:
        exec(compile("def build():\n    raise KeyError('k')\nbuild()", str(file), "exec"), {})
    assert f'"{file}", line 2, in build' in user_traceback(caught.value)
