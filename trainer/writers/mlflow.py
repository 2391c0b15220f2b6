"""MLflow: each run here is one there, in `<runs_dir>/mlflow.db` unless MLFLOW_TRACKING_URI names another store."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from mlflow.entities import Metric, Param
from mlflow.environment_variables import MLFLOW_EXPERIMENT_NAME, MLFLOW_TRACKING_URI
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from trainer.files import write_atomically
from trainer.hparams import hyperparameters
from trainer.schema import Experiment
from trainer.writers.base import Writer
from trainer.writers.jsonl import points

_MOST_PARAMS = 100  # that MLflow takes at once


class MLflow(Writer):
    """Metrics by the names `train/loss` and `test/loss`, and the hyperparameters, once.

    MLflow keeps whatever it was told, and the same point twice if it was told twice. So what it has already is not told again, and
    what it lacks is, from metrics.jsonl: an earlier attempt may not have reached it.

    Args:
        run_dir: the run directory.
        position: the number of updates already reported.
        experiment: the configuration.
    """

    def __init__(self, run_dir: Path, position: int, experiment: Experiment) -> None:
        self._client = MlflowClient(MLFLOW_TRACKING_URI.get() or f"sqlite:///{run_dir.resolve().parent / 'mlflow.db'}")
        known = run_dir / "mlflow_run_id"
        if known.exists():
            self._id = known.read_text()
            self._client.update_run(self._id, status="RUNNING")
        else:
            self._id = self._begin(run_dir.name, hyperparameters(experiment))
            write_atomically(known, self._id)
        metrics = self._client.get_run(self._id).data.metrics
        self._known = {key: {metric.step for metric in self._client.get_metric_history(self._id, key)} for key in metrics}
        for split, step, values in points(run_dir, position):
            self.scalars(split, step, values)

    def _begin(self, name: str, parameters: Mapping[str, object]) -> str:
        group = MLFLOW_EXPERIMENT_NAME.get() or name.rpartition("-")[0] or name
        run_id: str = self._client.create_run(self._group_id(group), run_name=name).info.run_id
        params = [Param(key, str(value)) for key, value in parameters.items()]
        for start in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(run_id, params=params[start : start + _MOST_PARAMS])
        return run_id

    def _group_id(self, name: str) -> str:
        if (found := self._client.get_experiment_by_name(name)) is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException:  # a run that begins at the same time may have made it
                if (found := self._client.get_experiment_by_name(name)) is None:
                    raise
        return str(found.experiment_id)

    def scalars(self, split: str, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        new = {key: value for name, value in values.items() if step not in self._known.get(key := f"{split}/{name}", ())}
        self._client.log_batch(self._id, metrics=[Metric(key, float(value), now, step) for key, value in new.items()])

    def close(self) -> None:
        self._client.set_terminated(self._id)
