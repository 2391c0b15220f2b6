"""Your own search: tries the values in order until one is good enough."""

from trainer.sweep.search import GridSearch


class UntilGood(GridSearch):
    def __init__(self, context, *, accuracy: float = 0.9):
        super().__init__(context)
        self.accuracy = accuracy

    def propose(self, study):
        outcomes = [trial.outcome for trial in study.trials.values() if trial.outcome]
        if any(outcome.metrics.get("accuracy", 0) >= self.accuracy for outcome in outcomes):
            return None
        return super().propose(study)
