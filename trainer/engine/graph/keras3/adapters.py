"""Low-rank adapters in the layers of a Keras 3 model (LoRA, Hu et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainer.engine.graph.state.weight_paths import select, shown, weights_of
from trainer.errors import ConfigError

LORA = "train.lora.layers"


def add_adapters(model: Any, rank: int, patterns: Sequence[str]) -> None:
    """Add adapters to layers; their kernels are no longer trained.

    The output of the model stays what it was: an adapter begins with zeros.

    Args:
        model: a built model of Keras 3.
        patterns: layers whose kernel one of them matches have adapters, if Keras can add any.

    Raises:
        ConfigError: a pattern matches nothing, or no layer that can have adapters.
    """
    weights = weights_of({"model": model})
    able = [weight for weight in weights if hasattr(weight.layer, "enable_lora")]
    if not able:
        raise ConfigError(
            f"train.lora.rank ({rank}): no layer of {model.name} can have adapters; Keras adds "
            f"them to Dense, EinsumDense, Embedding and Conv layers; its layers are "
            f"{shown(dict.fromkeys(weight.layer.name for weight in weights))}"
        )
    for pattern in patterns:
        for weight in select(LORA, pattern, able):
            layer = weight.layer
            if layer.lora_enabled:
                continue
            try:
                layer.enable_lora(rank)
            except ValueError as error:
                raise ConfigError(f"{LORA} ('{pattern}'): {layer.name}: {error}") from error
