"""The modes of the command: `mode=train`, `mode=evaluate`, and so on. No TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mode:
    """What can be done with an experiment.

    Attributes:
        module: whose `run` takes the command. Only this one is imported. What a worker does in the
            modes of the launcher, it decides in `trainer.worker.modes`.
        needs_run: whether it is about a run that exists.
        with_loop: whether it works with a loop of the user's own.
        with_env: whether it works with an environment in place of a dataset.
        with_ray: whether its processes may be placed by Ray.
    """

    module: str = "trainer.launch.launcher"
    needs_run: bool = True
    with_loop: bool = False
    with_env: bool = False
    with_ray: bool = True


MODES = {
    "train": Mode(needs_run=False, with_loop=True, with_env=True),
    "plan": Mode("trainer.launch.plan", needs_run=False, with_env=True),
    "verify": Mode("trainer.launch.verify", needs_run=False, with_loop=True, with_ray=False),
    "evaluate": Mode(with_env=True),
    "export": Mode(with_env=True),
    "predict": Mode(),
}
"""The modes by name, in the order in which the user is told of them."""
