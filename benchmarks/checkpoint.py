"""Cost of checkpoints: `python -m benchmarks.checkpoint [--model ...] [--rounds N] [--every N]`.

One process trains, and every so many steps does nothing, keeps its state in memory as often as a
run does, or saves: synchronously, in a thread, and by the process that writes what is in memory,
which is the default. The time until the next turn is measured: a save in the background must be
complete by then. Turns are interleaved, so that other load on the machine affects all alike.
`--realtime` (root) lets other load wait, and the writing process give way to the training as it
does by its priority.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import BATCH_SIZES, LEARNING_RATES, data_file, interleave, table

if TYPE_CHECKING:
    from trainer.engine.engine import Engine
    from trainer.launch.processes.file_writer_process import FileWriterProcess
    from trainer.runs.state_memory import StateMemory

NOTHING = "no saving"
MEMORY = "memory alone"
BLOCKING = "synchronous"
THREAD = "by a thread"
PROCESS = "by a process"


@contextlib.contextmanager
def ways(
    model: str, optimizer: str, data: Path, every: int, writer: FileWriterProcess, own: StateMemory
) -> Iterator[dict[str, Callable[[], float]]]:
    """Build the engine and its checkpointers; yield name -> function that returns ms a step."""
    import tensorflow as tf

    from trainer.engine.checkpoints.checkpointer import Checkpointer
    from trainer.engine.checkpoints.file_writer import FileWriter
    from trainer.engine.checkpoints.memory_snapshots import MemorySnapshots
    from trainer.runs.checkpoint_retention import KeepNewest
    from trainer.runs.state_memory import MemoryFiles, Position, StateMemory

    with tempfile.TemporaryDirectory() as folder:
        engine = _build_engine(model, optimizer, data, Path(folder))
        savers = {
            way: Checkpointer(
                Path(folder, way),
                engine.state.trackables(),
                [KeepNewest(2)],
                background=way == THREAD,
            )
            for way in (BLOCKING, THREAD, PROCESS)
        }
        memories = {
            way: MemorySnapshots(
                engine.checkpointer.reader, MemoryFiles(memory, {}, list), engine.process_group
            )
            for way, memory in ((MEMORY, StateMemory(os.memfd_create("alone"))), (PROCESS, own))
        }
        memories[PROCESS].writer = FileWriter(writer.connection)
        iterator = engine.loop.feed.open(0, engine.state.divergence_monitor.left_out.numpy())

        def measured(way: str) -> float:
            saver, memory = savers.get(way), memories.get(way)
            began = time.perf_counter()
            position = Position(*[int(engine.state.step.numpy())] * 2)
            if memory is not None:
                memory.keep(position)
            if saver is not None:
                kept = None if memory is None else memory.to_write(position)
                saver.save(position.step, None, kept)
            engine.loop.run(iterator, tf.constant(every, tf.int64))[0].numpy()
            if saver is not None:
                saver.wait()
            return 1000 * (time.perf_counter() - began) / every

        for way in (NOTHING, *savers, *memories):  # the first calls compile, and allocate
            measured(way)
        yield {
            way: (lambda way=way: measured(way))
            for way in (NOTHING, MEMORY, BLOCKING, THREAD, PROCESS)
        }
        # Two checkpoints are kept.
        size = sum(file.stat().st_size for file in Path(folder, BLOCKING).glob("ckpt-*")) / 2
        print(f"A checkpoint has {size / 1e6:.1f} MB.")


def _build_engine(model: str, optimizer: str, data: Path, folder: Path) -> Engine:
    from trainer.cli.compose import compose
    from trainer.cluster.messages import Channel
    from trainer.worker.building import build

    experiment = compose(
        [
            f"model={model}",
            "dataset=mnist",
            f"dataset.path={data}",
            f"optimizer={optimizer}",
            f"optimizer.learning_rate={LEARNING_RATES[optimizer]}",
            f"batch.global_size={BATCH_SIZES[model]}",
            "train.steps=1000000",
            f"runs_dir={folder}",
        ]
    )
    return build.engine(experiment, folder, Channel(lambda message: None))


@contextlib.contextmanager
def _writer(*, realtime: bool) -> Iterator[tuple[FileWriterProcess, StateMemory]]:
    """Fork a process that writes what is in a memory; yield it and the memory."""
    from trainer.launch.processes.file_writer_process import FileWriterProcess
    from trainer.launch.processes.fork_server import ForkServer
    from trainer.runs.state_memory import StateMemory

    if realtime:  # what is forked inherits this, and `nice` does not change it
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    server = ForkServer.acquire()
    if realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(int(os.environ.get("PRIO", "2"))))
    memory = StateMemory(os.memfd_create("benchmark"))
    with open(os.devnull, "w") as null:
        writer = FileWriterProcess(server, (memory.fileno(), null.fileno(), null.fileno()))
        writer.start()
        try:
            yield writer, memory
        finally:
            writer.end()
            server.release()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.checkpoint", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--model", choices=BATCH_SIZES, default="tutorial_cnn")
    parser.add_argument("--optimizer", choices=LEARNING_RATES, default="adam")
    parser.add_argument("--every", type=int, default=50, help="steps between two saves")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument(
        "--data",
        type=Path,
        help="an .npz file in the layout of Keras' mnist.npz; default: one at hand, else noise",
    )
    parser.add_argument("--realtime", action="store_true", help="let other processes wait (root)")
    args = parser.parse_args()
    os.environ |= {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    with (
        _writer(realtime=args.realtime) as writer,  # before the environment is another
        data_file(args.data) as data,
        ways(args.model, args.optimizer, data, args.every, *writer) as contenders,
    ):
        results = interleave(contenders, args.rounds)
    title = (
        f"{args.model}, {args.optimizer}, a save every {args.every} steps: "
        f"milliseconds a step, {args.rounds} rounds"
    )
    print(table(title, "ms", results, NOTHING))
    for way, times in results.items():
        ratios = [own / base for own, base in zip(times, results[NOTHING], strict=True)]
        print(f"{way}: median of the ratios of a round {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
