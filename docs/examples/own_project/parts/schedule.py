"""Your own schedule: the learning rate falls as one over the step."""

from trainer.schedules.schedule import Schedule


def inverse(peak, total_steps, steps_per_epoch, *, halved_after: int = 100):
    return Schedule(peak, 0, lambda step: 1.0 / (1.0 + step / halved_after))
