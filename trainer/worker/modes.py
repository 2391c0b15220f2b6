"""What a worker does: train, evaluate, predict or export; or serve those that do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import tensorflow as tf

from trainer.cluster.spec import Cluster
from trainer.engine.initial_weights import checkpoints_of, restore_weights
from trainer.errors import CheckpointError, ConfigError
from trainer.files import write_json
from trainer.protocols import CallbackDefaults
from trainer.reinforcement.actor import Actor, PublishedPolicy
from trainer.reinforcement.environment_data import EnvironmentData
from trainer.runs import checkpoint_retention
from trainer.runs.checkpoint_marker import copy_checkpoint, verify
from trainer.runs.directory import write_result
from trainer.strategies import devices
from trainer.text import without_classes
from trainer.worker import server
from trainer.worker.export import export
from trainer.worker.own_loop import run_own_loop
from trainer.worker.predict.predict import predict
from trainer.worker.run import SavedRun
from trainer.worker.sidecar_evaluator import Sidecar
from trainer.worker.training import TrainingRun


def execute(run: TrainingRun, began: float) -> bool:
    """Do this process's part of the command; return False if it was stopped on request."""
    experiment, cluster = run.experiment, run.cluster
    devices.limit_gpus(experiment.devices.gpus)
    process = (experiment, run.run_dir, run.channel, cluster, run.stop_requested)
    if experiment.mode == "export":
        export.run(SavedRun(*process))
        return True
    strategy, reason = run.resolved_strategy
    if run.stand_by is None:
        run.faults.reached("start")
    if cluster.process_id.is_evaluator:
        return Sidecar(SavedRun(*process), run.faults).run(dismissed=cluster.is_local)
    if cluster.process_id.is_actor:
        return _act(ActorRun(*process))
    if cluster.process_id.job in strategy.service_jobs:
        return server.serve(cluster, run.run_dir, run.channel, run.stop_requested)
    if experiment.trains and run.stand_by is None:
        run.ledger.mark("start", at=began, workers=_num_workers(cluster))
    if reason:
        run.channel.line(reason)
    if experiment.own_loop is not None:
        return run_own_loop(run)
    return _run_engine(run)


class ActorRun(SavedRun):
    """A run in an actor: one core for each, because its networks are small.

    It has no callbacks: all events are the learner's.
    """

    @property
    def num_threads(self) -> int:
        return 1

    @property
    def callbacks(self) -> Mapping[str, CallbackDefaults]:
        return {}


def _act(run: ActorRun) -> bool:
    """Step environments for a learner until the training is over; return whether it is finished."""
    tf.config.set_visible_devices([], "GPU")  # they are the learner's
    assert isinstance(run.dataset, EnvironmentData)
    actor = Actor(
        PublishedPolicy(run.task, run.dataset.env),
        run.dataset,
        experiment=run.experiment,
        run_dir=run.run_dir,
        channel=run.channel,
        cluster=run.cluster,
        stop=run.stop_requested,
    )
    return actor.run()


def _run_engine(run: TrainingRun) -> bool:
    """Build the engine and run the mode with it; dismiss the servers at the end."""
    service_jobs = run.strategy.service_jobs
    servers = server.ParameterServerControl(run.cluster, service_jobs, run.run_dir)
    engine = run.engine

    def stop() -> bool:
        return run.stop_requested() or servers.stop_requested()

    finished = _MODES[run.experiment.mode](run, stop)
    # Together: the first process to leave would look like a failure to those that still run.
    run.group.leave()
    engine.loop.close(finished=finished)
    servers.dismiss(finished=finished)
    return finished


def _train(run: TrainingRun, stop: Callable[[], bool]) -> bool:
    engine, channel = run.engine, run.channel
    if source := run.experiment.init_from:
        # The chief's, which the others need not see.
        (num_checkpoints,) = run.group.broadcast_from_chief(len(run.checkpointer.steps()))
        if not num_checkpoints and run.experiment.init_state:
            _branch(run, Path(source).expanduser())
        elif not num_checkpoints:
            _load_initial_weights(run, source)
    for line in engine.loop.first_lines():
        channel.line(line)
    if run.stand_by is not None:
        _stand_by(run, run.stand_by)
    finished = engine.train(stop, run.save_requested)
    if finished:
        for line in engine.loop.last_lines():
            channel.line(line)
        if run.group.is_chief:
            write_result(run.run_dir, run.experiment, engine.result())
    elif engine.is_paused:
        channel.line(f"Paused after step {engine.step}; the same command without pause continues.")
    run.ledger.mark("end", engine.step)
    return finished or engine.is_paused


def _stand_by(run: TrainingRun, wait: Callable[[], object]) -> None:
    """Get ready for the steps, and wait; then note what the start of a process notes."""
    run.engine.prepare()
    run.channel.log("standing by: all is compiled")
    wait()
    run.channel.log("taking over")
    run.ledger.refresh()
    run.ledger.mark("start", workers=_num_workers(run.cluster))
    run.engine.save_timer.restart()
    run.faults.reached("start")


def _num_workers(cluster: Cluster) -> int:
    return max(1, len(cluster.trainers))


def _branch(run: TrainingRun, source: Path) -> None:
    """Copy the newest checkpoint of a run, or a checkpoint, from which the engine then resumes."""
    directory, steps = checkpoints_of(source)
    problem = verify(directory, steps[-1]) if steps else "there is no checkpoint"
    if problem:
        raise ConfigError(f"init_from ({source}): {problem}; name a run, or one of its checkpoints")
    if run.group.is_chief:
        copy_checkpoint(directory, steps[-1], run.checkpointer.directory)
    run.group.barrier()
    run.channel.line(f"Branches off {source} at step {steps[-1]}.")


def _load_initial_weights(run: TrainingRun, source: str) -> None:
    """Load the weights of another run or checkpoint."""
    experiment, state = run.experiment, run.state
    path = Path(source).expanduser()
    models = state.task.models
    try:
        restored, warnings = restore_weights(
            path, models, experiment.init_allow, experiment.init_rename
        )
    except CheckpointError as error:
        # The user has named the checkpoint, and nothing has been trained.
        raise ConfigError(str(error)) from error
    for line in warnings:
        run.channel.line(f"warning: init_from: {line}")
    state.reset_averages()
    run.channel.line(f"Initial weights: {restored}.")


def _evaluate(run: TrainingRun, stop: Callable[[], bool]) -> bool:
    step = restore(run)
    run.channel.phase("evaluate", step)
    metrics = run.engine.evaluator.evaluate(lambda: False).metrics
    if not run.group.is_chief:
        return True
    content = {"step": step, "split": run.split, "metrics": metrics}
    write_json(run.run_dir / f"evaluation-{step}.json", content)
    values = ", ".join(f"{name} {value:.6f}" for name, value in without_classes(metrics).items())
    run.channel.line(f"step {step}: {run.split} {values}")
    return True


def restore(run: TrainingRun) -> int:
    """Restore the checkpoint that the command names, in every process; return its step."""
    # The chief decides: a shared file system may show the others something older.
    checkpoint = run.experiment.checkpoint
    (step,) = run.group.broadcast_from_chief(
        checkpoint_retention.select_step(run.run_dir, checkpoint) if run.group.is_chief else 0
    )
    run.checkpointer.restore(step)
    return step


_MODES: dict[str, Callable[[TrainingRun, Callable[[], bool]], bool]] = {
    "train": _train,
    "evaluate": _evaluate,
    "predict": lambda run, stop: predict(run, restore(run), stop),
}
"""The modes that need an engine; each returns whether it was finished."""
