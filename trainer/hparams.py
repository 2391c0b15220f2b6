"""TensorBoard's HParams tab: the hyperparameters of a run, and how it ended. It takes the metrics from the curves in events/.

A run is one session, whatever happens to it: what an attempt writes takes the place of what those before it wrote.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from trainer import identity, rules
from trainer.files import writing
from trainer.schema import Experiment

_CHOICES = ("model", "dataset", "task", "optimizer", "schedule", "strategy", "callbacks")
"""Groups whose choice is more than the values that it sets."""


class Session:
    """The run as the tab sees it, in a file of its own in events/.

    Args:
        run_dir: the run directory.
        experiment: its configuration.
        writes: whether this process does.
    """

    def __init__(self, run_dir: Path, experiment: Experiment, *, writes: bool) -> None:
        # A new name for each attempt: a TensorBoard that is open never returns to a file that it has read.
        self._path = run_dir / "events" / f"events.out.tfevents.{time.time_ns():020}.hparams"
        self._run_name, self._experiment = run_dir.name, experiment
        self._writes = writes and "tensorboard" in experiment.summary.writers

    def begin(self) -> None:
        """Tells the hyperparameters. What becomes of the run is not known until `end`: it may be killed."""
        if not self._writes:
            return
        from tensorboard.plugins.hparams import summary_v2

        before = list(self._path.parent.glob("*.hparams"))
        self._append(file_version="brain.Event:2")
        self._append(summary=summary_v2.hparams_pb(hyperparameters(self._experiment), trial_id=self._run_name))
        with writing(self._path):
            for file in before:  # a TensorBoard that is opened goes by the first that it finds
                file.unlink(missing_ok=True)

    def end(self, *, succeeded: bool) -> None:
        """Tells that the run is finished, or that it cannot go on."""
        if not self._writes:
            return
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

        info = plugin_data_pb2.SessionEndInfo(
            status=api_pb2.STATUS_SUCCESS if succeeded else api_pb2.STATUS_FAILURE, end_time_secs=time.time()
        )
        content = metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(session_end_info=info))
        self._append(summary=Summary(value=[{"tag": metadata.SESSION_END_INFO_TAG, "metadata": content, "tensor": metadata.NULL_TENSOR}]))

    def _append(self, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        with writing(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                RecordWriter(file).write(Event(wall_time=time.time(), **content).SerializeToString())


def hyperparameters(experiment: Experiment) -> dict[str, bool | int | float | str]:
    """Gives what makes the experiment: the choices by group, such as `model`, and all other keys by their dotted names.

    What is null is left out, and empty in the tab; so is a target, for which the choice stands.
    """
    choices = {group: (experiment.choices or {}).get(group) for group in _CHOICES}
    leaves = {key: value for key, value in identity.content(experiment).items() if identity.names_run(key)}
    found = {**choices, **{key: value for key, value in leaves.items() if not key.endswith("._target_")}}
    return {
        key: value if isinstance(value, bool | int | float | str) else rules.shown(value)
        for key, value in found.items()
        if value not in (None, {}, [])
    }
