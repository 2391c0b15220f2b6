"""The modes of the command: `mode=train`, `mode=evaluate`, and so on. No TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mode:
    """What can be done with an experiment.

    Attributes:
        module: whose `run` takes the command. Only this one is imported. What a worker does in the
            modes of the launcher, it decides in `trainer.worker.modes`.
    """

    help: str
    module: str = "trainer.launch.launcher"
    needs_run: bool = True
    with_loop: bool = False
    with_env: bool = False
    with_ray: bool = True


MODES = {
    "train": Mode("train a model", needs_run=False, with_loop=True, with_env=True),
    "plan": Mode(
        "show devices, memory and traffic, and train nothing",
        "trainer.launch.plan",
        needs_run=False,
        with_env=True,
    ),
    "verify": Mode(
        "prove that kills change nothing",
        "trainer.launch.verify",
        needs_run=False,
        with_loop=True,
        with_ray=False,
    ),
    "evaluate": Mode("evaluate a run", with_env=True),
    "export": Mode("write a SavedModel of a run", with_env=True),
    "predict": Mode("write a table of a run's predictions"),
}
