"""launch=inline: trains in the command's own process, so that a debugger stops at breakpoints."""

from __future__ import annotations

import os
import threading
import time

from trainer.cluster.messages import Channel, Message, Phase, Progress, SignalReceived
from trainer.cluster.signals import Decision, Signals
from trainer.errors import CRASHED
from trainer.launch.run_context import RunContext
from trainer.launch.supervision.attempt import Failure
from trainer.launch.supervision.supervisor import left_without_saving
from trainer.runs.process_status import log_of


def run(context: RunContext) -> tuple[int, Failure | None]:
    """Run the experiment in this process; return the exit code, and the failure if it crashed."""
    from trainer.worker import process

    console = context.console
    cluster = context.cluster
    process_id = cluster.process_id
    log = log_of(context.directory.path, process_id)
    console.begin(process_id)

    def show(message: Message) -> None:
        match message:
            case Phase() | Progress():
                console.update(process_id, message)
        console.show(message, log)

    # A signal after the run is not the run's: it must neither stop it nor end the process.
    has_ended = threading.Event()
    signals = Signals(lambda number: _handle_request(context, number, has_ended))
    if number := context.stop_requests.drain():
        signals.request(number)
    try:
        process.prepare()
        from trainer.worker.training import TrainingRun  # and TensorFlow

        worker = TrainingRun(
            context.experiment,
            context.directory.path,
            Channel(show),
            cluster,
            signals.stop,
            signals.save,
        )
        code = process.attempt(worker, signals, time.time())
    finally:
        has_ended.set()
        signals.close()
    return code, Failure(process_id, "failed") if code == CRASHED else None


def _handle_request(context: RunContext, number: int, has_ended: threading.Event) -> None:
    """Bound the time until the process has saved; `Signals` itself passes the request on."""
    match context.stop_requests.decide(SignalReceived(number)):
        case Decision.LEAVE:
            _leave(context)
        case Decision.STOP if grace_secs := context.experiment.preemption.grace_secs:

            def leave_unless_ended() -> None:
                if not has_ended.wait(grace_secs):
                    _leave(context)

            threading.Thread(target=leave_unless_ended, daemon=True, name="grace").start()


def _leave(context: RunContext) -> None:
    context.console.error(left_without_saving(context.directory.path))
    os._exit(CRASHED)
