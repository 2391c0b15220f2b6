"""MLflow: a run in `<runs_dir>/mlflow.db`, or in the store that MLFLOW_TRACKING_URI names."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from mlflow.entities import Metric, Param
from mlflow.environment_variables import MLFLOW_EXPERIMENT_NAME, MLFLOW_TRACKING_URI
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from trainer.files import read_text, write_atomically
from trainer.summaries.writers.jsonl import points
from trainer.summaries.writers.writer import Writer

_MAX_PARAMS = 100  # in one call, MLflow's limit


class MLflow(Writer):
    """Logs metrics as `train/loss` and `test/loss`, and the hyperparameters as parameters.

    MLflow keeps a point twice if it is logged twice. So the points that it has already are left
    out, and those that an earlier attempt could not log come from metrics.jsonl.
    """

    network = "MLFLOW_TRACKING_URI"
    requires = ("mlflow", "steadfast-trainer[mlflow]")

    def __init__(self, run_dir: Path, position: int) -> None:
        self._client = MlflowClient(
            MLFLOW_TRACKING_URI.get() or f"sqlite:///{run_dir.resolve().parent / 'mlflow.db'}"
        )
        id_file = run_dir / "mlflow_run_id"
        if id_file.exists():
            self._id = read_text(id_file)
            self._client.update_run(self._id, status="RUNNING")
        else:
            self._id = self._create_run(run_dir.name)
            write_atomically(id_file, self._id)
        metrics = self._client.get_run(self._id).data.metrics
        self._logged_steps = {
            key: {metric.step for metric in self._client.get_metric_history(self._id, key)}
            for key in metrics
        }
        for split, step, values in points(run_dir, position):
            self.scalars(split, step, values)

    def hyperparameters(self, values: Mapping[str, bool | int | float | str]) -> None:
        logged = self._client.get_run(self._id).data.params
        params = [Param(key, str(value)) for key, value in values.items() if key not in logged]
        for start in range(0, len(params), _MAX_PARAMS):
            self._client.log_batch(self._id, params=params[start : start + _MAX_PARAMS])

    def scalars(self, split: str, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [
            Metric(key, float(value), now, step)
            for name, value in values.items()
            if step not in self._logged_steps.get(key := f"{split}/{name}", ())
        ]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._id)

    def _create_run(self, name: str) -> str:
        experiment = MLFLOW_EXPERIMENT_NAME.get() or name.rpartition("-")[0] or name
        run = self._client.create_run(self._experiment_id(experiment), run_name=name)
        run_id: str = run.info.run_id
        return run_id

    def _experiment_id(self, name: str) -> str:
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException:  # a run that starts at the same time may have created it
                experiment = self._client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        return str(experiment.experiment_id)
