"""Runs of any model and dataset inside the test process, such as of tables."""

from tests.support import training

SMALL = ("train.steps=8", "batch.global_size=16", "summary.every_steps=50", "writers=[jsonl]")


def engine(run_dir, *overrides, **options):
    """Build the engine of a run."""
    return recipe(run_dir, *SMALL, *overrides, **options)


def recipe(run_dir, *overrides, **options):
    """Build the engine of a run of the length that its recipe has."""
    return training.recipe(run_dir, "writers=[jsonl]", *overrides, **options)


def train(run_dir, *overrides, stop=lambda engine: False):
    """Train to the end, or until `stop`; return every variable of the state by name."""
    return training.finish(engine(run_dir, *overrides), stop)
