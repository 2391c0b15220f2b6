"""One optimizer with separate options for groups of weights.

Each group is updated by an optimizer of the same kind, with TensorFlow's fused kernels. All of them
share one count of updates, and their slots are saved by weight: so a checkpoint does not show how
the weights were grouped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from trainer.config.rules import CLIPS
from trainer.engine.graph.state.weight_paths import Weight, select, variable_key, weights_of
from trainer.engine.graph.step.step_options import Optimizer
from trainer.engine.graph.step.update_check import Clip
from trainer.errors import ConfigError
from trainer.protocols import OptimizerDefaults, with_defaults

MakeMember = Callable[[Mapping[str, Any], float], Optimizer]
"""Makes an optimizer from options that replace the common ones, and a factor of the learning
rate."""


@dataclass(frozen=True)
class GroupRules:
    """The options of groups of weights.

    Attributes:
        layer_decay: the rate of a layer, as a fraction of the next layer's; None: all are equal.
    """

    key: str
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    layer_decay: float | None = None


class GroupedOptimizer(tf.keras.optimizers.legacy.Optimizer):
    """Updates each weight by the optimizer of its group.

    `bind` must be called before it is used.
    """

    def __init__(self, rules: GroupRules, make: MakeMember) -> None:
        super().__init__("Grouped")
        self.rules = rules
        self.clips: list[tuple[frozenset[str], Clip]] = []
        self.updates_per_step = 1
        self._make = make
        self._members: list[Optimizer] = []
        self._member_of: dict[str, int] = {}

    def bind(self, weights: Sequence[Weight]) -> None:
        """Divide the weights, all in the order of their layers, among the groups.

        Raises:
            ConfigError: a pattern matches nothing, or a weight has an option from two groups.
        """
        options, self.clips = _options(self.rules, weights)
        factors = _layer_factors(weights, self.rules.layer_decay)
        members: dict[Any, int] = {}
        for weight, own, factor in zip(weights, options, factors, strict=True):
            common = {name: value for name, value in own.items() if name not in CLIPS}
            rate = common.get("learning_rate")
            if isinstance(rate, str):
                factor *= float(common.pop("learning_rate").removesuffix("x"))
            group = (repr(sorted(common.items())), factor)
            if group not in members:
                members[group] = len(self._members)
                member = self._make(common, factor)
                member.iterations = self.iterations
                self._members.append(member)
            for variable in weight.variables:
                self._member_of[variable_key(variable)] = members[group]

    def updates_rows(self, variable: tf.Variable) -> bool:
        """Return whether the optimizer of a variable's group takes its gradient in rows."""
        return with_defaults(self.member_of(variable), OptimizerDefaults).updates_rows(variable)

    def get_slot_names(self) -> list[str]:
        """Return the names of the slots; not every weight need have each."""
        names = (name for member in self._members for name in member.get_slot_names())
        return list(dict.fromkeys(names))

    def get_slot(self, var: tf.Variable, slot_name: str) -> tf.Variable:
        """Return a slot of a variable; raise a KeyError without one."""
        return self.member_of(var).get_slot(var, slot_name)

    def variables(self) -> list[tf.Variable]:
        """Return the count of updates, and all slots."""
        slots = [variable for member in self._members for variable in member.variables()]
        return list({id(variable): variable for variable in [self.iterations, *slots]}.values())

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "groups": dict(self.rules.groups)}

    def member_of(self, variable: tf.Variable) -> Optimizer:
        """Return the optimizer of a variable's group."""
        return self._members[self._member_of[variable_key(variable)]]

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        for number, member in enumerate(self._members):
            member._create_all_weights(self._own(number, var_list))

    def _create_slots_for_sharded_variables(self, var_list: Sequence[tf.Variable]) -> None:
        """Do nothing: the optimizers of the groups do it."""

    def _own(self, number: int, variables: Sequence[tf.Variable]) -> list[tf.Variable]:
        return [v for v in variables if self._member_of[variable_key(v)] == number]

    def _prepare(self, var_list: Sequence[tf.Variable]) -> list[Any]:
        """Return the state of each group's update."""
        return [
            member._prepare(self._own(number, var_list))
            for number, member in enumerate(self._members)
        ]

    def _resource_apply_dense(
        self, grad: tf.Tensor, var: tf.Variable, apply_state: Any = None
    ) -> tf.Operation:
        number = self._member_of[variable_key(var)]
        return self._members[number]._resource_apply_dense(
            grad, var, apply_state=apply_state[number]
        )

    def _resource_apply_sparse_duplicate_indices(
        self, grad: tf.Tensor, var: tf.Variable, indices: tf.Tensor, apply_state: Any = None
    ) -> tf.Operation:
        number = self._member_of[variable_key(var)]
        return self._members[number]._resource_apply_sparse_duplicate_indices(
            grad, var, indices, apply_state=apply_state[number]
        )


def bind_groups(models: Mapping[str, Any], optimizers: Mapping[str, Any]) -> None:
    """Bind optimizers of groups to the weights of their models, those of frozen layers left out."""
    weights = weights_of(models)
    for name, optimizer in optimizers.items():
        if isinstance(optimizer, GroupedOptimizer) and name in models:
            trained = {variable_key(v) for v in models[name].trainable_variables}
            optimizer.bind([w for w in weights if variable_key(w.variables[0]) in trained])


def _options(
    rules: GroupRules, weights: Sequence[Weight]
) -> tuple[list[dict[str, Any]], list[tuple[frozenset[str], Clip]]]:
    """Return the options of each weight, from all groups that it belongs to, and the clips."""
    result: list[dict[str, Any]] = [{} for _ in weights]
    origin: list[dict[str, str]] = [{} for _ in weights]
    clips = []
    positions = {id(weight): number for number, weight in enumerate(weights)}
    for pattern, options in rules.groups.items():
        selected = select(f"{rules.key}.groups", pattern, weights)
        for weight in selected:
            number = positions[id(weight)]
            for name, value in options.items():
                kind = "clip" if name in CLIPS else name
                if kind in origin[number]:
                    raise ConfigError(
                        f"{rules.key}.groups: '{origin[number][kind]}' and '{pattern}' both give "
                        f"{weight.path} a {name}; change one pattern so that it does not match"
                    )
                result[number][name] = value
            origin[number].update({"clip" if name in CLIPS else name: pattern for name in options})
        if not set(options).isdisjoint(CLIPS):
            keys = frozenset(variable_key(v) for weight in selected for v in weight.variables)
            clips.append((keys, Clip.of(options)))
    return result, clips


def _layer_factors(weights: Sequence[Weight], decay: float | None) -> list[float]:
    """Return the factor of each weight's learning rate by the depth of its layer.

    The last layer has 1. Layers without a matrix or kernel, such as normalizations, go with the one
    before them (layer-wise learning rate decay, Clark et al. 2020).
    """
    if decay is None:
        return [1.0] * len(weights)
    with_matrix = {
        id(weight.layer) for weight in weights if any(v.shape.rank >= 2 for v in weight.variables)
    }
    depths = []
    counted: set[int] = set()
    for weight in weights:
        layer = id(weight.layer)
        if layer in with_matrix:
            counted.add(layer)
        depths.append(max(0, len(counted) - 1))
    return [decay ** (max(depths, default=0) - depth) for depth in depths]
