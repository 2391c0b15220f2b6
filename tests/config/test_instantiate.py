"""Whose code raised an error: a user's folder may be named like a library."""

import pytest

from trainer.config.instantiate import instantiate, instantiate_model
from trainer.config.options.targets import MODEL_ARGUMENTS
from trainer.errors import ConfigError


def huge(*, width):
    return bytearray(width)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"_target_": "os.system"}, r"^key._target_ \(os.system\) is refused by Hydra: "),
        ({"_target_": "math.sqrt"}, r"^key._target_ \(math.sqrt\) cannot be called as this key is"),
        ({"_target_": f"{__name__}.huge", "width": 2**62}, "does not fit into memory .*; choose"),
    ],
)
def test_target_that_cannot_be_called_is_an_error_in_one_line(node, message):
    with pytest.raises(ConfigError, match=message):
        instantiate(node, "key")


def by_position(shape, classes, *, width=1):
    return shape, classes, width


def by_name(width, dataset, *, features):
    return width, dataset, features


class Net:
    def __init__(self, num_classes, input_shape):
        self.taken = num_classes, input_shape


@pytest.mark.parametrize(
    ("name", "options", "result"),
    [
        ("by_position", {"width": 2}, ((8, 8), 10, 2)),
        ("by_name", {"width": 2}, (2, "data", {"x": (1,)})),
    ],
)
def test_model_function_gets_its_parameters(name, options, result):
    node = {"_target_": f"{__name__}.{name}", **options}
    available = dict(zip(MODEL_ARGUMENTS, ((8, 8), 10, "data", {"x": (1,)}), strict=True))
    assert instantiate_model(node, "model", available) == result
    net = instantiate_model({"_target_": f"{__name__}.Net"}, "model", available)
    assert net.taken == (10, (8, 8))
