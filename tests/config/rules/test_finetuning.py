"""Keys that treat some weights apart, checked before TensorFlow is imported."""

import pytest

from trainer.cli.compose import compose
from trainer.errors import ConfigError


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.freeze=['[']"], "train.freeze ('[') is no regular expression: "),
        (["train.unfreeze={a:0}"], "train.unfreeze.a (0) must be a step, an int >= 1"),
        (
            ["init_rename=a", f"init_from={__file__}"],
            "init_rename ('a') must be a mapping from regular ",
        ),
        (["train.unfreeze=3"], "train.unfreeze (3) must be a mapping from regular expressions"),
        (["init_allow=[head]"], "init_allow (head) needs init_from; add init_from=<run or file>"),
        (["init_rename={a: b}"], "init_rename (a) needs init_from; add init_from=<run or file>"),
        (
            [r"init_rename={\[: b}", f"init_from={__file__}"],
            "init_rename ('[') is no regular expression",
        ),
        (
            [r"init_rename={a\(b\): '\2'}", f"init_from={__file__}"],
            r"init_rename.a(b) (\2) is no replacement: invalid group reference 2",
        ),
        (
            ["train.clip_norm=1", "train.clip_value=2"],
            "train.clip_norm (1.0) and train.clip_value (2.0) are both set, at most one may be; "
            "add train.clip_value=null",
        ),
        (
            ["optimizer.groups={a:{learning_rate:ten}}"],
            "optimizer.groups.a.learning_rate (ten) must be a number > 0, or a multiple of the "
            "common rate such as 10x",
        ),
        (["optimizer.groups={a:{learning_rate:0}}"], "optimizer.groups.a.learning_rate (0) must"),
        (["optimizer.groups={a:{beta_1:2}}"], "optimizer.groups.a.beta_1 (2) must be >= 0 and < 1"),
        (["optimizer.groups={a:{clip_norm:0}}"], "optimizer.groups.a.clip_norm (0) must be > 0"),
        (["optimizer.groups={a:{bta_1:0.5}}"], "unknown key 'optimizer.groups.a.bta_1'"),
        (["optimizer.groups={a:3}"], "optimizer.groups.a (3) must be a mapping from options to"),
        (["optimizer.groups=3"], "optimizer.groups (3) must be "),
        (["optimizer.layer_decay=2"], "optimizer.layer_decay (2) must be > 0 and <= 1"),
        (
            ["task=gan", "task.generator_optimizer.groups={a:{learning_rate:x}}"],
            "task.generator_optimizer.groups.a.learning_rate (x) must be a number",
        ),
    ],
)
def test_wrong_value_is_one_line(overrides, message):
    with pytest.raises(ConfigError) as caught:
        compose(overrides)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(message)


def test_groups_may_set_what_the_optimizer_has():
    experiment = compose(
        [
            "optimizer=adamw",
            "optimizer.groups={head.*:{learning_rate:10x,clip_value:1},bias|norm:{weight_decay:0}}",
            "train.unfreeze={backbone:200}",
        ]
    )
    assert experiment.optimizer["groups"] == {
        "head.*": {"learning_rate": "10x", "clip_value": 1},
        "bias|norm": {"weight_decay": 0},
    }
    assert experiment.train.unfreeze == {"backbone": 200}
