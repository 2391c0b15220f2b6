"""What in a step depends on the layout: `python -m trainer.worker.modes.layout_findings <run dir>`.

Its standard input is the experiment as JSON, to be traced on one device. It prints JSON: a list of
lines, one for each operation that was found.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.cluster import environment
from trainer.cluster.messages import Channel
from trainer.config import loading

if TYPE_CHECKING:
    from trainer.engine.engine import Engine


def main() -> None:
    """Trace the step of the experiment, and print what was found."""
    environment.add_working_directory()
    environment.prepare_environment()
    from trainer.worker.building import build

    experiment = loading.restore(json.load(sys.stdin))
    engine = build.engine(experiment, Path(sys.argv[1]), Channel(lambda message: None))
    print(json.dumps(findings(engine, sharded=experiment.batch.shards is not None)))


def findings(engine: Engine, *, sharded: bool) -> list[str]:
    """Return a line for each operation of a training step that depends on the layout."""
    import tensorflow as tf

    from trainer.engine.graph.checks.layout_dependence import find, logged_collectives

    loop = engine.loop
    iterator = loop.feed.open(0, engine.state.divergence_monitor.left_out.numpy())
    collectives = logged_collectives(loop.trace(iterator))
    traced = loop.run.get_concrete_function(iterator, tf.TensorSpec([], tf.int64))
    return [str(finding) for finding in (*collectives, *find(traced.graph, sharded=sharded))]


if __name__ == "__main__":
    main()
