import os
import sys

import pytest

from trainer.config.options import targets

MODULE = '''
"""A user's module; it must never be imported by a check."""
import typing as t
from typing import Annotated, Literal, Optional
from os.path import join as rejoined
from my_pkg.shared import Cut
raise RuntimeError("imported")

Width = Annotated[int, Ge(1)]
CONSTANT = 3

def build(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    width: Width = 8,
    rate: Annotated[float, annotated_types.Ge(0), Lt(limit=1), "share", Ge(n)] = 0.0,
    name: str | None = None,
    wide: bool = False,
    sizes: list[int] = (),
    blocks: t.Sequence[Annotated[int, Ge(1)]] = (),
    pair: tuple[int, int] = (1, 2),
    kind: Literal["max", "mean"] = "max",
    depth: Optional[int] = None,
    path: Annotated[str | None, Exists("file")] = None,
    quoted: "int" = 1,
    odd: Annotated[Some.Unknown[Thing], OneOf(*Some.WORDS)] = None,
    free=None,
): ...

def texts(*, size: int = 1): ...
def needs(a, *, size: int, path: str): ...
def plain(input_shape, num_classes, width: int = 1, deep=False): ...
def anything(a, **options): ...
def asks(units, dataset, *, features, wide=False): ...
@decorated
def hidden(a): ...
@takes(Cut)
def taking(cut: Cut, *, size: int): ...
async def later(*, n: int = 1): ...

class Thing:
    def __init__(self, shape, *, width: int = 1): ...
    @classmethod
    def make(cls, *, n): ...
class Child(Thing): ...
class Empty: ...
def named(rate, steps, epoch): ...
class Foreign(Unseen): ...

if CONSTANT:
    def conditional(*, n: int = 1): ...
'''


@pytest.fixture(autouse=True)
def package(tmp_path, monkeypatch):
    """Put `my_pkg` on the path, whose modules raise when they are imported."""
    folder = tmp_path / "my_pkg"
    (folder / "nested" / "deep").mkdir(parents=True)
    (folder / "__init__.py").write_text(
        "raise RuntimeError('imported')\nfrom .things import build as exported\n"
    )
    (folder / "things.py").write_text(MODULE)
    (folder / "nested" / "deep" / "leaf.py").write_text("def f(*, n: int = 1): ...\n")
    (folder / "shared.py").write_text(
        "@dataclass\nclass Cut:\n    crop: Annotated[float | None, Gt(0)] = None\n"
    )
    (folder / "wrong.py").write_text("def f(:\n")
    (folder / "star.py").write_text("from os.path import *\n")
    (folder / "lazy.py").write_text("def __getattr__(name): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def check(name, group="", /, **options):
    return targets.check({"_target_": f"my_pkg.{name}", **options}, "model", group)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"width": 1, "rate": 0, "name": None, "wide": True, "sizes": [1, 2], "blocks": [1],
         "pair": [3, 4], "kind": "mean", "depth": None,
         "quoted": 3, "odd": object(), "free": [1]},
        {"_partial_": True, "_convert_": "all", "_recursive_": False},
        {"width": {"_target_": "my_pkg.things.Empty"}},
        {"width": {"_target_": None, "_partial_": True}},
        {"width": "???"},
    ],
)  # fmt: skip
def test_valid_options_have_no_problem(options):
    assert check("things.build", "model", **options) == []


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"widht": 3}, "unknown key 'model.widht'; did you mean 'model.width'?"),
        ({"num_classes": 3}, "model.num_classes (3) is passed by the engine; remove it"),
        ({"width": -3}, "model.width (-3) must be >= 1"),
        ({"rate": 1}, "model.rate (1) must be >= 0 and < 1"),
        ({"sizes": [1, "b"]}, "model.sizes ([1, 'b']) must be a list of int"),
        ({"blocks": [1, 0]}, "model.blocks ([1, 0]) each item must be >= 1"),
        ({"kind": "maen"}, "model.kind ('maen') must be one of max, mean; did you mean 'mean'?"),
        ({"path": "/x/y.npz"}, "model.path (/x/y.npz): no such file"),
        ({"free": {"_target_": "my_pkg.things.Empty", "n": 1}},
         "unknown key 'model.free.n'; known keys of model.free: none"),
        ({"free": [{"a": {"_target_": "no_such"}}]},
         "model.free[0].a._target_ (no_such) must be a dotted path; write package.module.name"),
    ],
)  # fmt: skip
def test_invalid_option_is_reported(options, line):
    assert check("things.build", "model", **options) == [line]


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("no_such_pkg.f", "(no_such_pkg.f): no module named 'no_such_pkg'; install it, "),
        ("tf.keras.Model", "(tf.keras.Model): no module named 'tf'; did you mean 'tensorflow'?"),
        ("my_pkg.wrong.f", "(my_pkg.wrong.f) cannot be read: "),
    ],
)
def test_target_that_cannot_be_read_is_reported(target, problem):
    (line,) = targets.check({"_target_": target}, "model")
    assert line.startswith(f"model._target_ {problem}")


def test_edited_module_is_read_again(package):
    module = package / "edited.py"
    for seconds, name in enumerate(("width", "depth")):
        module.write_text(f"class Model:\n    def __init__(self, {name}: int) -> None: ...\n")
        os.utime(module, (seconds, seconds))  # two files of one clock tick look the same
        assert targets.check({"_target_": f"{package.name}.edited.Model", name: 1}, "model") == []


@pytest.mark.parametrize(
    "target",
    [
        "my_pkg.exported", "my_pkg.things.rejoined", "my_pkg.things.hidden",
        "my_pkg.things.Foreign", "my_pkg.things.CONSTANT", "my_pkg.star.x", "my_pkg.lazy.x",
        "my_pkg.things.Thing.make", "tensorflow.keras.optimizers.legacy.Nadam", "math.floor",
        "builtins.dict", "numpy.zeros",
    ],
)  # fmt: skip
def test_targets_that_only_an_import_could_tell_are_accepted(target):
    assert targets.check({"_target_": target, "whatever": 1}, "model") == []


def test_positional_parameters_after_engine_arguments_are_options():
    assert check("things.plain", "model", width=2, deep=True) == []
    assert check("things.plain", "model", width="x") == ["model.width ('x') must be an int"]
    # The engine passes by position, so a user's name for the first does not matter.
    assert check("things.named", "schedule", rate=1, total_steps=1) == [
        "model.rate (1) is passed by the engine; remove it",
        "model.total_steps (1) is passed by the engine; remove it",
    ]


@pytest.mark.parametrize(
    ("name", "options", "lines"),
    [
        ("plain", {"num_classes": 1}, ["model.num_classes (1) is passed by the engine; remove it"]),
        ("asks", {}, ["model.units has no value; add +model.units=<value>"]),
        ("asks", {"units": 2, "dataset": 1},
         ["model.dataset (1) is passed by the engine; remove it"]),
        ("needs", {"size": 1, "path": "x"}, ["model.a has no value; add +model.a=<value>"]),
        ("texts", {"dataset": 1}, ["unknown key 'model.dataset'; known keys of model: size"]),
    ],
)  # fmt: skip
def test_model_arguments_are_known_by_name(name, options, lines):
    assert check(f"things.{name}", "model", **options) == lines


def test_classes_and_other_forms_are_checked():
    for name, known in {
        "things.Thing": "width", "things.Child": "width", "things.Empty": "none",
        "things.later": "n", "things.conditional": "n", "nested.deep.leaf.f": "n",
    }.items():  # fmt: skip
        group = "loop" if known == "width" else ""
        assert check(name, group, x=1) == [f"unknown key 'model.x'; known keys of model: {known}"]
    assert check("things.anything", "loop", x=1) == []


def test_fields_of_a_dataclass_that_a_function_takes_are_options():
    assert check("things.taking", size=1, crop=0.5) == []
    assert check("things.taking", size=1, cut=1)[0].startswith("unknown key 'model.cut'")
    assert check("things.taking", crop=0) == [
        "model.crop (0) must be > 0",
        "model.size has no value; add +model.size=<int>",
    ]


def test_check_imports_nothing():
    check("things.build", "model")
    assert not any(name.partition(".")[0] == "my_pkg" for name in sys.modules)
