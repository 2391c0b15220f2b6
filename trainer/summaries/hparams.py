"""TensorBoard's HParams tab: the hyperparameters of a run, and its status.

The tab takes the metrics from the curves in events/. A run is one session: each attempt replaces
what the attempts before it have written.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from trainer.config.options import constraints
from trainer.config.schema import Experiment
from trainer.files import regular_file, writing
from trainer.runs import identity, normal_form

_CHOICES = (
    "model",
    "dataset",
    "augment",
    "task",
    "optimizer",
    "schedule",
    "strategy",
    "callbacks",
    "loop",
)
"""Groups whose choice is shown besides its values."""


class HParamsSession:
    """The session of a run in the tab, in a file of its own in events/.

    Args:
        run_dir: the run directory.
        experiment: its configuration.
        writes: whether this process writes.
    """

    def __init__(self, run_dir: Path, experiment: Experiment, *, writes: bool) -> None:
        # Each attempt has a new file: an open TensorBoard never reads a file again.
        self._path = run_dir / "events" / f"events.out.tfevents.{time.time_ns():020}.hparams"
        self._run_name = run_dir.name
        self._experiment = experiment
        self._writes = writes and "tensorboard" in experiment.writers

    def begin(self) -> None:
        """Write the hyperparameters; the status is unknown until `end`, because of kills."""
        if not self._writes:
            return
        from tensorboard.plugins.hparams import summary_v2

        old_files = list(self._path.parent.glob("*.hparams"))
        self._append(file_version="brain.Event:2")
        self._append(
            summary=summary_v2.hparams_pb(
                hyperparameters(self._experiment), trial_id=self._run_name
            )
        )
        with writing(self._path):
            # A new TensorBoard uses the first file that it finds.
            for file in old_files:
                file.unlink(missing_ok=True)

    def end(self, *, succeeded: bool) -> None:
        """Write that the run is finished, or that it has failed."""
        if not self._writes:
            return
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

        info = plugin_data_pb2.SessionEndInfo(
            status=api_pb2.STATUS_SUCCESS if succeeded else api_pb2.STATUS_FAILURE,
            end_time_secs=time.time(),
        )
        content = metadata.create_summary_metadata(
            plugin_data_pb2.HParamsPluginData(session_end_info=info)
        )
        self._append(
            summary=Summary(
                value=[
                    {
                        "tag": metadata.SESSION_END_INFO_TAG,
                        "metadata": content,
                        "tensor": metadata.NULL_TENSOR,
                    }
                ]
            )
        )

    def _append(self, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        with writing(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._path, "ab", opener=regular_file) as file:
                RecordWriter(file).write(
                    Event(wall_time=time.time(), **content).SerializeToString()
                )


def hyperparameters(experiment: Experiment) -> dict[str, bool | int | float | str]:
    """Return the hyperparameters: choices by group, such as `model`, and values by dotted key.

    They are the keys that name a run. A null is left out, and so is a `_target_`, because the
    choice is its name.
    """
    choices = {
        group: choice
        for group, choice in (experiment.choices or {}).items()
        if group in _CHOICES or "." in group  # a node of the task
    }
    values = normal_form.leaves(experiment)
    options = {
        key: value
        for key, value in values.items()
        if identity.names_run(key, values) and not key.endswith("._target_")
    }
    return {
        key: value
        if isinstance(value, bool | int | float | str)
        else constraints.format_value(value)
        for key, value in {**choices, **options}.items()
        if value not in (None, {}, [])
    }
