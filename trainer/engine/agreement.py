"""What all processes agree on before each graph call: to stop, to save, how many steps to run."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.engine.pacing import StepPacer
from trainer.engine.plan import Timer
from trainer.engine.process_group import ProcessGroup


@dataclass(frozen=True)
class Requests:
    """What was requested of this process, by a signal or by its supervisor.

    Attributes:
        stop: whether training is to stop.
        save: whether the state is to be saved.
    """

    stop: bool
    save: bool


@dataclass(frozen=True)
class Decision:
    """What every process does next.

    Attributes:
        stop: whether training stops, because a stop was requested of some process.
        save: whether the state is saved first.
        save_is_due: whether it is the chief's timer that asks for the save, not a user.
        num_steps: the most steps that the next graph call may run.
    """

    stop: bool
    save: bool
    save_is_due: bool
    num_steps: int


def agree(
    process_group: ProcessGroup, save_timer: Timer, pacer: StepPacer, requests: Requests
) -> Decision:
    """Return the same decision in every process; collective.

    Args:
        process_group: the processes that decide together.
        save_timer: says when a save is due; the chief's counts.
        pacer: says how many steps go into one graph call; the chief's counts.
        requests: what was requested of this process.
    """
    due, count = (save_timer.due(), pacer.count) if process_group.is_chief else (False, 0)
    stops, saves, dues, num_steps = process_group.all_reduce_sum(
        requests.stop, requests.save, due, count
    )
    return Decision(
        stop=stops > 0, save=saves + dues > 0, save_is_due=dues > 0, num_steps=num_steps
    )
