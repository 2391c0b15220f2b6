"""Your own retention policy: the later, the further apart are the checkpoints that are kept."""

from trainer.runs.checkpoint_retention import RetentionPolicy


class PowersOfTwo(RetentionPolicy):
    label = "power of two"

    def kept(self, checkpoints):
        return {saved.step for saved in checkpoints if saved.step.bit_count() == 1}
