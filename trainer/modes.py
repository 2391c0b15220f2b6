"""What a worker does: train, evaluate, predict or export."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from trainer import build, export, selection, server
from trainer.channel import Channel
from trainer.checkpoint import restore_weights
from trainer.cluster import Cluster
from trainer.engine import Engine
from trainer.errors import NonFiniteError
from trainer.faults import Faults
from trainer.files import write_atomically
from trainer.hparams import Session
from trainer.ledger import Ledger
from trainer.predict import predict
from trainer.schema import Checkpoint, Experiment
from trainer.sidecar import Sidecar
from trainer.signals import Signals
from trainer.tables import overall


def run(experiment: Experiment, run_dir: Path, channel: Channel, cluster: Cluster, signals: Signals, began: float) -> bool:
    """Does what `mode` says; returns whether it was finished, or stopped on request."""
    if experiment.mode == "export":
        export.run(experiment, run_dir, channel)
        return True
    how, _ = build.strategy_of(experiment).resolve(cluster)
    rehearsed = experiment.fault if experiment.mode == "train" else {}
    faults = Faults(rehearsed, run_dir, cluster, channel, how.servers | {"evaluator"})
    faults.reached("start")
    if cluster.task.job == "evaluator":
        sidecar = Sidecar(run_dir, experiment, lambda: build.sidecar(experiment, run_dir, channel, cluster), channel, faults)
        return sidecar.run(signals.stop, told=cluster.source == "local")
    if cluster.task.job in how.servers:
        return server.serve(cluster, run_dir, channel, signals.stop)
    servers = server.Servers(cluster, how.servers, run_dir)
    if experiment.mode == "train":
        Ledger(run_dir, writes=cluster.is_chief).enter("start", at=began)
    engine = build.engine(experiment, run_dir, channel, cluster, faults)
    finished = _run(experiment, engine, run_dir, channel, lambda: signals.stop() or servers.want_to_stop(), signals.save)
    # Together, else the first to go looks like a failure to those who still have something to do.
    engine.peers.barrier()
    servers.dismiss(finished=finished)
    return finished


def _run(
    experiment: Experiment,
    engine: Engine,
    run_dir: Path,
    channel: Channel,
    stop: Callable[[], bool],
    save: Callable[[], bool],
) -> bool:
    if experiment.mode == "train":
        return _train(experiment, engine, run_dir, channel, stop, save)
    step = restore(engine, run_dir, experiment.checkpoint)
    if experiment.mode == "predict":
        return predict(experiment, engine, run_dir, channel, step, stop)
    return _evaluate(engine, run_dir, channel, step)


def restore(engine: Engine, run_dir: Path, checkpoint: Checkpoint) -> int:
    """Restores the checkpoint that the command means, in every process; gives its step."""
    # The chief's word: a shared file system may show the others something older.
    (step,) = engine.peers.chiefs(selection.step_of(run_dir, checkpoint) if engine.peers.is_chief else 0)
    engine.checkpoints.restore(step)
    return step


def _train(
    experiment: Experiment,
    engine: Engine,
    run_dir: Path,
    channel: Channel,
    stop: Callable[[], bool],
    save: Callable[[], bool],
) -> bool:
    if experiment.init_from and not engine.checkpoints.steps():
        step, skipped = restore_weights(Path(experiment.init_from).expanduser(), engine.state.task.models)
        for line in skipped:
            channel.line(f"warning: init_from: {line}")
        engine.state.reset_averages()
        channel.line(f"Initial weights: step {step} of {experiment.init_from}.")
    for line in engine.loop.first_lines():
        channel.line(line)
    session = Session(run_dir, experiment, writes=engine.peers.is_chief)
    session.begin()
    try:
        finished = engine.train(stop, save)
    except NonFiniteError:
        session.end(succeeded=False)
        raise
    if finished:
        _finish(experiment, engine, session, run_dir, channel)
    engine.ledger.enter("end", engine.step)
    return finished


def _finish(experiment: Experiment, engine: Engine, session: Session, run_dir: Path, channel: Channel) -> None:
    """Says and writes what the training came to."""
    for line in engine.loop.last_lines():
        channel.line(line)
    # With the length that was asked for: a later command that asks for more is not finished by this.
    result = {**engine.result(), "train": {"steps": experiment.train.steps, "epochs": experiment.train.epochs}}
    session.end(succeeded=True)
    if engine.peers.is_chief:
        write_atomically(run_dir / "result.json", json.dumps(result, indent=1))


def _evaluate(engine: Engine, run_dir: Path, channel: Channel, step: int) -> bool:
    channel.phase("evaluate", step)
    metrics = engine.evaluator.evaluate(lambda: False)
    if not engine.peers.is_chief:
        return True
    write_atomically(run_dir / f"evaluation-{step}.json", json.dumps({"step": step, "split": "test", "metrics": metrics}, indent=1))
    channel.line(f"step {step}: test " + ", ".join(f"{name} {value:.6f}" for name, value in overall(metrics).items()))
    return True
