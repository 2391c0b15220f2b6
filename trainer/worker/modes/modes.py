"""What a worker does: train, evaluate, predict or export; or serve those that do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from trainer.cluster.fault_injection import Faults
from trainer.cluster.signals import Signals
from trainer.cluster.spec import BESIDE, Cluster
from trainer.engine.engine import Engine
from trainer.engine.initial_weights import restore_weights
from trainer.errors import CheckpointError, ConfigError
from trainer.files import write_json
from trainer.reinforcement.actor import Actor, PublishedPolicy
from trainer.reinforcement.environment_data import EnvironmentData
from trainer.runs import checkpoint_retention
from trainer.runs.directory import write_result
from trainer.runs.ledger import Ledger
from trainer.strategies import devices
from trainer.strategies.one_device import OneDevice
from trainer.strategies.select import select_strategy
from trainer.strategies.strategy import Strategy
from trainer.text import without_classes
from trainer.worker.building import build
from trainer.worker.building.build_dataset import build_dataset
from trainer.worker.building.build_evaluation import sidecar
from trainer.worker.building.build_model import build_task, create_strategy
from trainer.worker.context import WorkerContext
from trainer.worker.export import export
from trainer.worker.modes import server
from trainer.worker.modes.own_loop_mode import run_own_loop
from trainer.worker.modes.sidecar_evaluator import Sidecar
from trainer.worker.predict.predict import predict


@dataclass(frozen=True)
class Job:
    """One command that needs an engine.

    Attributes:
        engine: the engine, built and not restored.
    """

    context: WorkerContext
    engine: Engine
    stop: Callable[[], bool]
    save: Callable[[], bool]


def run(context: WorkerContext, signals: Signals, began: float) -> bool:
    """Do this process's part of the command; return False if it was stopped on request.

    Args:
        began: Unix time when the process was started.
    """
    experiment, cluster = context.experiment, context.cluster
    run_dir, channel = context.run_dir, context.channel
    devices.limit_gpus(experiment.devices.gpus)
    if experiment.mode == "export":
        export.run(experiment, run_dir, channel)
        return True
    strategy, reason = select_strategy(experiment).resolve(cluster, devices.count_gpus)
    configured = (experiment.trains and experiment.fault) or {}
    faults = Faults(configured, run_dir, cluster, channel, strategy.service_jobs | BESIDE)
    if context.stand_by is None:
        faults.reached("start")
    if cluster.process_id.is_evaluator:
        evaluator = Sidecar(run_dir, experiment, lambda: sidecar(context), channel, faults)
        return evaluator.run(signals.stop, dismissed=cluster.is_local)
    if cluster.process_id.is_actor:
        return _act(context, signals.stop)
    if cluster.process_id.job in strategy.service_jobs:
        return server.serve(cluster, run_dir, channel, signals.stop)
    if experiment.trains and context.stand_by is None:
        ledger = Ledger(run_dir, writes=cluster.is_chief)
        ledger.mark("start", at=began, workers=_num_workers(cluster))
    if reason:
        channel.line(reason)
    if experiment.own_loop is not None:
        return run_own_loop(context, strategy, faults, signals)
    return _run_engine(context, strategy, faults, signals)


def _act(context: WorkerContext, stop: Callable[[], bool]) -> bool:
    """Step environments for a learner until the training is over; return whether it is finished."""
    tf.config.set_visible_devices([], "GPU")  # they are the learner's
    tf_strategy = create_strategy(context, OneDevice())
    devices.set_threads(1)  # one core for each actor: its networks are small
    data = build_dataset(context.experiment)
    assert isinstance(data, EnvironmentData)
    policy = PublishedPolicy(build_task(context, tf_strategy, data), data.env)
    actor = Actor(
        policy,
        data,
        experiment=context.experiment,
        run_dir=context.run_dir,
        channel=context.channel,
        cluster=context.cluster,
        stop=stop,
    )
    return actor.run()


def _run_engine(
    context: WorkerContext, strategy: Strategy, faults: Faults, signals: Signals
) -> bool:
    """Build the engine and run the mode with it; dismiss the servers at the end."""
    cluster = context.cluster
    run_dir = context.run_dir
    servers = server.ParameterServerControl(cluster, strategy.service_jobs, run_dir)
    engine = build.engine_of(context, faults, strategy)

    def stop() -> bool:
        return signals.stop() or servers.stop_requested()

    finished = _MODES[context.experiment.mode](Job(context, engine, stop, signals.save))
    # Together: the first process to leave would look like a failure to those that still run.
    engine.process_group.leave()
    engine.loop.close(finished=finished)
    servers.dismiss(finished=finished)
    return finished


def _train(job: Job) -> bool:
    engine = job.engine
    if job.context.experiment.init_from and not _has_checkpoint(engine):
        _load_initial_weights(job, job.context.experiment.init_from)
    for line in engine.loop.first_lines():
        job.context.channel.line(line)
    if job.context.stand_by is not None:
        _stand_by(job, job.context.stand_by)
    finished = engine.train(job.stop, job.save)
    if finished:
        for line in engine.loop.last_lines():
            job.context.channel.line(line)
        if engine.process_group.is_chief:
            write_result(job.context.run_dir, job.context.experiment, engine.result())
    engine.ledger.mark("end", engine.step)
    return finished


def _stand_by(job: Job, wait: Callable[[], object]) -> None:
    """Get ready for the steps, and wait; then note what the start of a process notes."""
    engine = job.engine
    engine.prepare()
    job.context.channel.log("standing by: all is compiled")
    wait()
    job.context.channel.log("taking over")
    engine.ledger.refresh()
    engine.ledger.mark("start", workers=_num_workers(job.context.cluster))
    engine.save_timer.restart()
    engine.faults.reached("start")


def _num_workers(cluster: Cluster) -> int:
    return max(1, len(cluster.trainers))


def _has_checkpoint(engine: Engine) -> bool:
    """Return whether the chief has a checkpoint, which the others need not see; collective."""
    (num_steps,) = engine.process_group.broadcast_from_chief(len(engine.checkpointer.steps()))
    return num_steps > 0


def _load_initial_weights(job: Job, source: str) -> None:
    """Load the weights of another run or checkpoint."""
    state = job.engine.state
    try:
        restored, warnings = restore_weights(
            Path(source).expanduser(),
            state.task.models,
            job.context.experiment.init_allow,
            job.context.experiment.init_rename,
        )
    except CheckpointError as error:
        # The user has named the checkpoint, and nothing has been trained.
        raise ConfigError(str(error)) from error
    for line in warnings:
        job.context.channel.line(f"warning: init_from: {line}")
    state.reset_averages()
    job.context.channel.line(f"Initial weights: {restored}.")


def _evaluate(job: Job) -> bool:
    step = restore(job)
    job.context.channel.phase("evaluate", step)
    metrics = job.engine.evaluator.evaluate(lambda: False).metrics
    if not job.engine.process_group.is_chief:
        return True
    content = {"step": step, "split": job.engine.split, "metrics": metrics}
    write_json(job.context.run_dir / f"evaluation-{step}.json", content)
    values = ", ".join(f"{name} {value:.6f}" for name, value in without_classes(metrics).items())
    job.context.channel.line(f"step {step}: {job.engine.split} {values}")
    return True


def _predict(job: Job) -> bool:
    step = restore(job)
    return predict(
        job.context.experiment, job.engine, job.context.run_dir, job.context.channel, step, job.stop
    )


def restore(job: Job) -> int:
    """Restore the checkpoint that the command names, in every process; return its step."""
    engine = job.engine
    is_chief = engine.process_group.is_chief
    # The chief decides: a shared file system may show the others something older.
    (step,) = engine.process_group.broadcast_from_chief(
        checkpoint_retention.select_step(job.context.run_dir, job.context.experiment.checkpoint)
        if is_chief
        else 0
    )
    engine.checkpointer.restore(step)
    return step


_MODES: dict[str, Callable[[Job], bool]] = {
    "train": _train,
    "evaluate": _evaluate,
    "predict": _predict,
}
"""The modes that need an engine; each returns whether it was finished."""
