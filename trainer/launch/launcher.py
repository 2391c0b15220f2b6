"""From a checked experiment to an exit code: the parent's side of a run."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

from trainer.cli.overrides import resume_override
from trainer.cluster import discovery, environment, network_namespace
from trainer.cluster.fork_server import ForkServer
from trainer.cluster.messages import Channel, Message, Phase, Progress, SignalReceived
from trainer.cluster.network_namespace import IsolationError, Namespace
from trainer.cluster.schedulers.scheduler import schedulers
from trainer.cluster.signals import Decision, Signals, StopRequests, forward_to
from trainer.cluster.spec import ACTOR, EVALUATOR, TF_CONFIG, Cluster, ProcessId
from trainer.config import batch_sizes
from trainer.config.schema import Experiment, Pause
from trainer.errors import CRASHED, DONE, WRONG_INPUT, ConfigError, StorageError
from trainer.files import clear_temporaries, regular_file
from trainer.launch import ray_engine
from trainer.launch.attempt import Failure
from trainer.launch.display import Console, is_attended, is_quiet
from trainer.launch.processes import WorkerProcess
from trainer.launch.run_context import Command, RunContext, open_directory, resolve
from trainer.launch.supervisor import Supervisor, left_without_saving
from trainer.runs import (
    checkpoint_retention,
    prediction_table,
    process_status,
    provenance,
    status,
)
from trainer.runs.checkpoint_marker import committed_steps
from trainer.runs.directory import RunDirectory, read_result
from trainer.runs.identity import run_address
from trainer.runs.ledger import CATEGORIES, Ledger, format_sizes
from trainer.runs.process_status import HostStatus, log_of, process_start_time
from trainer.strategies.strategy import Strategy
from trainer.text import format_duration, without_classes

_STUCK_SECS = 5.0  # a write of the status that takes longer is not waited for
_OUT_OF_MEMORY = "if no user sent SIGKILL, the system was probably out of memory; see dmesg"


def run(
    command: Command, console: Console | None = None, stop_requests: StopRequests | None = None
) -> int:
    """Run an experiment to its end, or continue it.

    Returns:
        The exit code: 0 done, 1 crashed, 2 wrong input, 130 or 143 stopped after saving.

    Raises:
        ConfigError: the configuration cannot work; nothing has been written.
    """
    began = process_start_time() if command.server else time.time()
    experiment = command.experiment
    strategy, cluster = resolve(experiment)
    address = run_address(experiment)
    if address is not None:
        from trainer.launch import remote_run  # a run in a folder does not need it

        remote_run.check(experiment, strategy, cluster.source if cluster.is_declared else None)
    if experiment.mode == "predict":
        prediction_table.check(experiment)
    requests = stop_requests or StopRequests(is_attended=is_attended())
    # Until the end: a signal must not cut the report of the last attempt.
    console = console or Console(is_quiet=is_quiet(cluster, experiment.launch))
    with (
        _network(experiment, strategy, cluster, console) as network,
        forward_to(requests.request),
    ):

        def run_in_directory() -> int:
            """Find or create the run directory, and run the experiment in it."""
            directory = open_directory(command, cluster, console, requests)
            if directory is None:
                return 128 + requests.number
            context = RunContext(command, strategy, directory, console, requests, cluster, *network)
            try:
                return _run(context, began)
            finally:
                console.close()
                directory.release()

        if address is None:
            return run_in_directory()
        remote = remote_run.RemoteRun(experiment, address, cluster, console, requests)
        return remote.run(run_in_directory)


def _run(context: RunContext, began: float) -> int:
    """Do what is left to do in the run directory, and report the result."""
    experiment, directory, console = context.experiment, context.directory, context.console
    cluster = context.cluster
    for line in directory.repairs:
        console.line(f"warning: {line}")
    finished, location = _result(context)
    if finished:
        console.line(f"Already finished: {finished}")
        console.line(location)
    is_continued = cluster.is_chief and not directory.is_new
    if is_continued and (code_warning := provenance.code_warning(directory.path)):
        console.line(f"warning: {code_warning}")
    if finished:
        _show_next(context, next_commands(context))
        return DONE
    if experiment.trains:
        _prepare_training(context)
    trains_here = cluster.is_chief and experiment.trains
    ledger = Ledger(directory.path, writes=trains_here)
    ledger.mark("begin", at=began)
    if trains_here:
        status.clear_failure(directory.path)
    end_status = write_status(context) if experiment.trains else lambda code: None
    code = CRASHED
    try:
        inline = experiment.launch.inline
        code, failure = run_inline(context) if inline else _supervise(context, ledger)
    finally:
        end_status(code)
    if trains_here and code == CRASHED:
        _report_crash(context, failure)
    ledger.mark("exit")
    console.close()
    _conclude(code, location, context)
    return code


def _prepare_training(context: RunContext) -> None:
    """Check that the run can be continued with these replicas, and record that it is."""
    command, directory = context.command, context.directory
    for scheduler in () if context.cluster.is_declared else schedulers():
        if warning := scheduler.warning(environment.current()):
            context.console.line(f"warning: {warning}")
    num_replicas = context.strategy.num_replicas()
    if num_replicas is not None:
        batch_sizes.check_same_global_batch(
            context.experiment.batch, provenance.num_replicas(directory.path), num_replicas
        )
    if context.cluster.is_chief and not directory.is_new:
        for line in directory.record_continuation(command.overrides, command.config_dir):
            context.console.line(line)


def _conclude(code: int, location: str, context: RunContext) -> None:
    experiment, directory, console = context.experiment, context.directory, context.console
    if code in (WRONG_INPUT, 128 + signal.SIGINT) and context.cluster.is_chief:
        directory.discard()
    elif code == DONE and experiment.trains and (result := read_result(directory.path, experiment)):
        console.line(f"Done: {_summary(result)}")
        if (best := result.get("best")) and best["step"] != result["step"]:
            console.line(f"Best: step {best['step']}{_metrics(best)}")
        console.line(f"Time: {_times(result)}")
        if workers := format_sizes(result.get("workers", [])):
            console.line(f"Workers: {workers}")
    if code in (WRONG_INPUT, CRASHED):
        directory.withdraw()
        return
    if not directory.path.exists():
        console.line("Nothing was trained, and nothing is kept.")
        return
    console.line(location if code == DONE else f"Run directory: {directory.name}")
    is_done = code == DONE and not (experiment.trains and _is_paused(context))
    _show_next(context, next_commands(context) if is_done else [_continuing(context)])


def _is_paused(context: RunContext) -> bool:
    experiment = context.experiment
    return experiment.pause != Pause() and read_result(context.directory.path, experiment) is None


def _show_next(context: RunContext, commands: Sequence[str]) -> None:
    if context.cluster.is_chief and context.experiment.trains:
        for word, command in zip_longest(["Next:"], commands, fillvalue="     "):
            context.console.line(f"{word} {command}", is_whole=True)


def _result(context: RunContext) -> tuple[str | None, str]:
    """Return what there is if nothing is left to do, and a line with its place.

    Raises:
        ConfigError: there is no such checkpoint, or something else is in the result's place.
    """
    experiment, directory, cluster = context.experiment, context.directory, context.cluster
    location = f"Run directory: {directory.name}"
    # An evaluator may have the last checkpoint to evaluate when the training is done. And what the
    # chief has not moved aside yet is an earlier run.
    if not cluster.is_chief and (cluster.process_id.is_beside or experiment.resume == "never"):
        return None, location
    if experiment.trains:
        return _trained(experiment, directory), location
    step = checkpoint_retention.select_step(directory.path, experiment.checkpoint)
    if experiment.mode != "predict":
        return None, location
    table = prediction_table.requested_table(experiment, directory.path, step)
    location = f"Predictions with step {step} of {directory.path}: {table.path}"
    if not table.is_finished():
        return None, location
    table.rows.unlink(missing_ok=True)  # left over if a kill came before its removal
    return f"{table.recorded()['rows']} rows are predicted", location


def _trained(experiment: Experiment, directory: RunDirectory) -> str | None:
    """Return the outcome of the training if nothing is left to train."""
    train = experiment.train
    unit = "steps" if train.epochs is None else "epochs"
    condition = f", which is at or past train.{unit}={getattr(train, unit)}"
    if result := read_result(directory.path, experiment):
        is_longer = result["train"].get(unit) != getattr(train, unit)
        return _summary(result, condition if is_longer else "")
    if (step := directory.step_past(experiment)) is None:
        return None
    resume = resume_override(directory.name)
    return (
        f"step {step}{condition}; continue to the length it was given since with {resume}, or end "
        f"it there with {resume} train.steps={step}"
    )


def _supervise(context: RunContext, ledger: Ledger) -> tuple[int, Failure | None]:
    beside = _beside(context)
    command = context.command
    server: ForkServer | None = None
    if context.experiment.launch.uses_ray:
        ray = ray_engine.RayEngine(context, beside)
        supervisor = Supervisor(context, ray.members, ray.start, ledger)
        end = ray.close
    else:
        server = command.server or ForkServer.acquire()
        supervisor = Supervisor(
            context,
            lambda: _members(context, beside),
            lambda process_id: WorkerProcess(server, context.namespace),
            ledger,
        )
        end = server.release if server is not command.server else lambda: None
    try:
        return supervisor.supervise(), supervisor.failure
    except ray_engine.PlacementError as error:
        for line in error.problems:
            context.console.error(line)
        return error.code, supervisor.failure
    finally:
        end()


def run_inline(context: RunContext) -> tuple[int, Failure | None]:
    """Run the experiment in this process, so that a debugger stops at breakpoints."""
    from trainer.worker import process

    console, run_dir = context.console, context.directory.path
    process_id = context.cluster.process_id
    console.begin(process_id)

    def show(message: Message) -> None:
        if isinstance(message, Phase | Progress):
            console.update(process_id, message)
        console.show(message, log_of(run_dir, process_id))

    # A signal after the run is not the run's: it must neither stop it nor end the process.
    has_ended = threading.Event()

    def leave(after_secs: float = 0.0) -> None:
        if not has_ended.wait(after_secs):
            console.error(left_without_saving(run_dir))
            os._exit(CRASHED)

    def handle(number: int) -> None:
        """Bound the time until the process has saved; `Signals` itself passes the request on."""
        match context.stop_requests.decide(SignalReceived(number)):
            case Decision.LEAVE:
                leave()
            case Decision.STOP if grace_secs := context.experiment.preemption.grace_secs:
                threading.Thread(
                    target=leave, args=(grace_secs,), daemon=True, name="grace"
                ).start()

    signals = Signals(handle)
    if number := context.stop_requests.drain():
        signals.request(number)
    try:
        process.prepare()
        from trainer.worker.training import TrainingRun  # and TensorFlow

        worker = TrainingRun(
            context.experiment,
            run_dir,
            Channel(show),
            context.cluster,
            signals.stop,
            signals.save,
        )
        code = process.attempt(worker, signals, time.time())
    finally:
        has_ended.set()
        signals.close()
    return code, Failure(process_id, "failed") if code == CRASHED else None


def write_status(context: RunContext) -> Callable[[int], None]:
    """Write what the processes of this command do, for readers on any host, until it ends.

    In its own thread, so that a slow disk stops nothing else.

    Returns:
        A function to call with the exit code at the end.
    """
    cluster = [str(process_id) for process_id in context.cluster.process_ids]
    name, has_ended = str(context.cluster.process_id), threading.Event()

    def write(code: int | None) -> None:
        host, processes = socket.gethostname(), context.console.statuses()
        host_status = HostStatus(host, cluster, processes, code)
        process_status.write(context.directory.path, name, host_status)

    def write_often() -> None:
        while not has_ended.is_set():
            write(None)
            has_ended.wait(process_status.INTERVAL_SECS)

    def end(code: int) -> None:
        has_ended.set()
        thread.join(_STUCK_SECS)
        if not thread.is_alive():
            write(code)

    thread = threading.Thread(target=write_often, daemon=True, name="status")
    thread.start()
    return end


@contextmanager
def _network(
    experiment: Experiment, strategy: Strategy, cluster: Cluster, console: Console
) -> Iterator[tuple[Namespace | None, str | None]]:
    """Create the network of a cluster that is started here, or connect to Ray's, for the block.

    Yields:
        `namespace` and `why_open` of a RunContext.

    Raises:
        ConfigError: the configuration insists on isolation, and it is impossible here.
    """
    if experiment.launch.uses_ray:
        with ray_engine.connected(experiment.launch.ray, console.line):
            yield None, None
        return
    if cluster.is_declared or not strategy.process_ids(None):
        yield None, None
        return
    isolate = strategy.isolate
    network_use = None
    if isolate is not True:
        network_use = network_namespace.needs_network(
            asdict(experiment)
        ) or environment.online_writer(experiment.writers)
    if isolate is False or network_use:
        yield None, network_use or "strategy.isolate is false"
        return
    try:
        namespace = Namespace()
    except IsolationError as error:
        if isolate is True:
            raise ConfigError(
                f"strategy.isolate (true) is impossible here: {error}; use auto or false"
            ) from error
        yield None, str(error)
        return
    with namespace:
        yield namespace, None


def _members(context: RunContext, beside: Sequence[Cluster]) -> list[Cluster]:
    if context.cluster.is_chief:
        clear_temporaries(context.directory.path)  # between two attempts no process writes
    if context.cluster.is_declared:
        clusters = [context.cluster]
    else:
        # New ones for each attempt: a killed process may leave its port in use for a while.
        clusters = discovery.local_clusters(context.strategy.process_ids(None)) or [Cluster()]
    if why := context.why_open:
        context.console.line(network_namespace.open_ports_warning(clusters[0].jobs, why))
    return [*clusters, *beside]


def _beside(context: RunContext) -> list[Cluster]:
    """Return the evaluator and the actors that are started here, if at all by the chief.

    TF_CONFIG would declare its own evaluator.
    """
    experiment, cluster = context.experiment, context.cluster
    if not experiment.trains or not cluster.is_chief:
        return []
    beside = []
    if experiment.evaluate.sidecar and cluster.source != TF_CONFIG:
        beside.append(ProcessId(EVALUATOR, 0))
    if experiment.env is not None and not cluster.actors:
        beside += [ProcessId(ACTOR, index) for index in range(experiment.actors.count)]
    return [Cluster(process_id) for process_id in beside]


def _report_crash(context: RunContext, failure: Failure | None) -> None:
    """Show the user how to continue; repeat that at the end of the failed process's log."""
    directory, console = context.directory, context.console
    try:
        status.record_failure(directory.path, console.cause)
    except StorageError as error:
        console.line(f"warning: {error}")
    step = max(committed_steps(directory.path / "checkpoints"), default=None)
    newest = (
        "there is no checkpoint yet" if step is None else f"the newest checkpoint is of step {step}"
    )
    lines = []
    if directory.path.exists():
        lines.append(f"{newest}; to continue: {_continuing(context)}")
    if failure and failure.end.endswith("SIGKILL"):
        lines.insert(0, _OUT_OF_MEMORY)
    for line in lines:
        console.error(line)
    if failure:
        path = log_of(directory.path, failure.process_id)
        lines.insert(0, f"{failure.process_id} {failure.end}")
        with suppress(OSError), open(path, "a", opener=regular_file) as log:
            log.writelines(f"error: {line}\n" for line in lines)


def _continuing(context: RunContext) -> str:
    directory, argv = context.directory, context.command.argv
    # Changes of this command that no checkpoint has are withdrawn, so it must be repeated whole.
    words = argv if directory.changes else [argv[0], resume_override(directory.name)]
    return provenance.format_command(words)


def next_commands(context: RunContext) -> list[str]:
    """Return what one does with a trained run: the commands that apply to it, ready to paste."""
    experiment, directory, argv = context.experiment, context.directory, context.command.argv
    commands = []
    if run_address(experiment) is None:
        runs = str(directory.path.parent)
        words = [argv[0], "ui"] if runs == "runs" else [argv[0], "ui", runs]
        commands.append(provenance.format_command(words))
        if "tensorboard" in experiment.writers:
            commands.append(shlex.join(["tensorboard", "--logdir", runs]))
        commands.append(provenance.format_command([argv[0], "report", directory.name]))
    if experiment.own_loop is None:
        words = [argv[0], "mode=export", resume_override(directory.name)]
        commands.append(provenance.format_command(words))
    return commands


def _summary(result: Mapping[str, Any], note: str = "") -> str:
    """Return a result: `step 24, test loss 2.2979, 4 s in 3 attempts`."""
    attempts = f" in {result['attempts']} attempts" if result["attempts"] > 1 else ""
    duration = format_duration(result["wall_secs"])
    return f"step {result['step']}{note}{_metrics(result)}, {duration}{attempts}"


def _metrics(result: Mapping[str, Any]) -> str:
    """Return `, test loss 2.2979, test accuracy 0.3889`: of the test split if there is one."""
    split, metrics = result.get("split", "test"), result["metrics"]
    if not metrics and "validation" in result:
        split, metrics = "validation", result["validation"]
    shown = without_classes(metrics or {}).items()
    return "".join(f", {split} {name} {value:.4f}" for name, value in shown)


def _times(result: Mapping[str, Any]) -> str:
    """Return where the time went, the largest share first: `93 % train, 4 % start, 2 % compile`."""
    percent = {
        CATEGORIES[name]: 100 * secs / result["wall_secs"] for name, secs in result["time"].items()
    }
    return ", ".join(
        f"{share:.0f} % {name}"
        for name, share in sorted(percent.items(), key=lambda item: -item[1])
        if share >= 0.5
    )
