"""The typed schema of an experiment: every key, its default, its rule, one line of explanation. No TensorFlow.

Groups whose choices name a `_target_` (model, dataset, task, optimizer, schedule, strategy, callbacks) are free mappings
here: their schema is the signature of the target, read by `trainer.targets`.
"""

# ruff: noqa: RUF009  (`key` is `dataclasses.field` with its metadata spelled out)
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MODES = ("train", "verify", "evaluate", "export", "predict")
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
USED = ("latest", "best")
"""Besides a step, what may be said of `checkpoint.use`."""
TRACKERS = ("mlflow", "wandb")
"""Writers that are optional packages; the run goes on without one that fails."""
WRITERS = ("tensorboard", "jsonl", "csv", *TRACKERS)
MAX_SKIPS = 1024
"""How many blocks of samples a checkpoint has room for."""

GROUPS = (
    "model", "dataset", "task", "metrics", "optimizer", "schedule", "strategy", "checkpoint", "callbacks", "fault", "launch", "search",
    "experiment",
)  # fmt: skip
ONE_CHOICE = tuple(group for group in GROUPS if group not in ("metrics", "callbacks", "fault", "experiment"))
"""Groups of which a run has one; of the others several may be chosen, in a list."""
PAIRS = (("train.steps", "train.epochs"), ("batch.global_size", "batch.per_replica"))


def key(default: Any, help: str, rule: str | None = None) -> Any:
    """A schema field: default, one line of explanation, and a rule in the language of `trainer.rules`."""
    metadata = {"help": help, "rule": rule}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class Train:
    """Length and form of training."""

    steps: int | None = key(None, "how many steps to train; exactly one of steps and epochs", ">= 1")
    epochs: int | None = key(30, "how many epochs to train", ">= 1")
    steps_per_epoch: int | None = key(None, "a shorter (or longer) reporting epoch; null: one pass over the data", ">= 1")
    steps_per_loop: int | str = key(
        "auto", "steps inside one graph call, never across an event; auto: about a second's worth", "auto or >= 1"
    )
    clip_norm: float | None = key(None, "clip the gradient of the global batch to this global norm", "> 0")
    ema_decay: float | None = key(None, "keep an exponential moving average of the weights, evaluate and export it", "> 0, < 1")


@dataclass
class Batch:
    """Batch sizes."""

    global_size: int | None = key(128, "examples in one update, over all replicas; exactly one of the two", ">= 1")
    per_replica: int | None = key(None, "examples in one update on each replica", ">= 1")
    accumulate: int = key(1, "micro-batches whose gradients are added up before one update", ">= 1")


@dataclass
class Evaluate:
    """When to evaluate."""

    every_steps: int | None = key(None, "evaluate every so many steps", ">= 1")
    every_epochs: int | None = key(1, "evaluate every so many epochs; the end is always evaluated", ">= 1")
    sidecar: bool = key(False, "evaluate in a process of its own beside the training, from its checkpoints")


@dataclass
class Best:
    """Best checkpoints, kept besides the newest."""

    metric: str | None = key(None, "also keep the best checkpoints by this metric of the test split, e.g. accuracy")
    mode: str = key("max", "whether larger (max) or smaller (min) is better", "max | min")
    keep: int = key(1, "how many of the best to keep", ">= 1")


@dataclass
class Checkpoint:
    """When to save and what to keep."""

    use: int | str = key("latest", "for mode=evaluate, export, predict; checkpoint=best is short for it", "latest | best or >= 0")
    every_steps: int | None = key(None, "save every so many steps", ">= 1")
    every_secs: float | None = key(None, "save when so many seconds have gone by since the last save", "> 0")
    every_epochs: int | None = key(1, "save every so many epochs; the end is always saved", ">= 1")
    keep: int = key(2, "how many of the newest checkpoints to keep", ">= 1")
    keep_every_steps: int | None = key(None, "also keep, for good, the checkpoints whose step is a multiple of this", ">= 1")
    async_write: bool = key(False, "go on training while a checkpoint is written")
    best: Best = key(Best, "best checkpoints, kept besides the newest")


@dataclass
class Profile:
    """A window of steps that TensorFlow's profiler records."""

    start: int | None = key(None, "record from after this step on; null: nothing is recorded", ">= 0")
    steps: int = key(20, "how many steps are recorded", ">= 1")


@dataclass
class Summary:
    """What can be seen while it runs."""

    every_steps: int = key(50, "write training metrics every so many steps", ">= 1")
    writers: list[str] = key(["tensorboard", "jsonl"], f"where metrics go: any of {', '.join(WRITERS)}", f"each: {' | '.join(WRITERS)}")
    histograms: int | None = key(None, "histograms of weights and gradients every so many steps", ">= 1")
    images: int | None = key(None, "input images as the model sees them, after augmentation, every so many steps", ">= 1")
    mistakes: int = key(0, "how many wrongly classified examples each evaluation shows", ">= 0, <= 100")
    graph: bool = key(False, "the model's graph")
    profile: Profile = key(Profile, "a window of steps that the profiler records")


@dataclass
class Predict:
    """mode=predict: what the model says of each example, in a table."""

    split: str = key("test", "which split of the dataset", "train | test")
    images: str | None = key(None, "a folder of image files instead of the dataset, prepared as the dataset's images are", "directory")
    format: str = key("csv", "form of the table", "csv | parquet")
    path: str | None = key(None, "the table's file; null: <run>/predictions/<split or folder>-<step>.<format>")


@dataclass
class Export:
    """mode=export: a SavedModel, and what goes with it."""

    weights: str | None = key("h5", "also the weights alone, in this form; null: not", "h5 | keras")
    tflite: bool = key(False, "also a TensorFlow Lite model")


@dataclass
class Restart:
    """What the supervisor may do."""

    max_restarts: int = key(3, "how often the supervisor may start a failed attempt again", ">= 0")
    backoff_secs: float = key(1.0, "pause before the first restart; doubles each time", ">= 0")


@dataclass
class Preemption:
    """What a request to stop (SIGTERM, Ctrl-C) may take."""

    grace_secs: float | None = key(None, "leave without saving when saving has not come about after so many seconds; null: wait", "> 0")


@dataclass
class Watchdog:
    """How long a live process may make no progress before its attempt is ended and started again."""

    stall_secs: float = key(300.0, "while it trains or serves", "> 0")
    compile_secs: float = key(1800.0, "while it starts, restores and compiles", "> 0")
    evaluate_secs: float = key(900.0, "between two batches of an evaluation", "> 0")
    save_secs: float = key(1800.0, "while it saves", "> 0")


@dataclass
class Divergence:
    """What to do when the loss or a gradient is not finite, or the loss jumps."""

    action: str = key(
        "stop",
        "stop; skip: drop the update; rollback: go on from the newest checkpoint before it, without the samples",
        "stop | skip | rollback",
    )
    spike_sigma: float | None = key(None, "a loss so many standard deviations above the mean is a spike; null: none is", "> 0")
    window: int = key(128, "newest losses that mean and deviation are taken of; there is no spike before there are so many", ">= 2")
    leave_out: int = key(1, "rollback: steps whose samples are left out, the offending one last", ">= 1")
    max_skips: int = key(16, "skip, rollback: end the run when more steps than these would be left out", f">= 1, <= {MAX_SKIPS}")


@dataclass
class Fault:
    """A fault to rehearse: who does what when, once in a run."""

    what: str = key(
        "kill",
        "what happens; slow: from then on and in every attempt, all others once in a run",
        "kill | terminate | freeze | crash | slow | full_disk | corrupt | nan",
    )
    who: str = key("chief", "to whom: chief, supervisor, or a process of the run such as worker-1, ps-0")
    when: str = key(
        "step",
        "in which phase: start, compile, evaluate, save (before the checkpoint counts), step",
        "start | compile | step | evaluate | save",
    )
    at: int = key(1, "step: after this many (nan: in this one); evaluate and save: the n-th of the attempt", ">= 1")
    delay_secs: float = key(0.0, "so much later, the process going on meanwhile; slow: how long it rests each time", ">= 0")


@dataclass
class Verify:
    """mode=verify: the experiment straight, and again with kills, compared to the bit."""

    steps: int = key(200, "how many steps, at most train.steps; evaluated and saved a few times on the way", ">= 2")
    kills: int = key(3, "how many kills, at random moments", ">= 1")
    seed: int | None = key(None, "of the random moments, to repeat them; null: a new one, which is told", ">= 0")


@dataclass
class Launch:
    """How workers are started."""

    inline: bool = key(False, "train in this very process (for a debugger) instead of in supervised workers")


@dataclass
class Sweep:
    """How the points of a sweep (`-m`) are run, and how its summary is sorted."""

    name: str | None = key(None, "the summary's folder is <runs_dir>/sweeps/<name>; null: a name made of what is varied")
    jobs: int = key(1, "how many points train at a time; cores and GPUs are divided between them", ">= 1")
    on_error: str = key(
        "continue", "after a failed point: continue with the others; stop at once; retry it, then continue", "continue | stop | retry"
    )
    retries: int = key(1, "retry: how often one point is tried again", ">= 1")
    metric: str | None = key(None, "the metric of the test split that the summary is sorted by; null: accuracy, or the loss without one")
    mode: str = key("auto", "whether larger (max) or smaller (min) is better; auto: smaller for a loss or an error", "auto | max | min")


@dataclass
class Search:
    """How the points of a sweep are chosen."""

    method: str = key("grid", "grid: every combination; random; optuna: learns from the points before", "grid | random | optuna")
    trials: int = key(20, "random, optuna: points in all, those of earlier commands included", ">= 1")
    seed: int = key(0, "random, optuna: what is drawn", ">= 0, <= 4294967295")
    prune: bool = key(True, "optuna: stop points whose metric stays behind the others'")


@dataclass
class Experiment:
    """The whole configuration of a run."""

    name: str | None = key(None, "first part of the run directory's name; null: <model>-<dataset>")
    runs_dir: str = key("runs", "where run directories are made")
    seed: int = key(0, "the only source of randomness", ">= 0, <= 9007199254740991")
    mode: str = key(
        "train",
        "what to do: train; verify that kills change nothing; evaluate, export or predict with a run (with resume=)",
        " | ".join(MODES),
    )
    precision: str = key("float32", "float32, mixed_bfloat16 or mixed_float16", " | ".join(PRECISIONS))
    jit: bool = key(False, "compile forward and backward pass with XLA")
    deterministic: bool = key(False, "deterministic kernels; a GPU needs it to repeat bit for bit, a CPU does not")
    resume: str = key("auto", "auto: continue this run if it exists; never: start afresh; or a run directory")
    resume_allow: list[str] = key([], "keys that may differ from the run's though they change its numbers, e.g. [optimizer.learning_rate]")
    init_from: str | None = key(None, "take the weights, and nothing else, from this run or checkpoint", "checkpoint")
    train: Train = key(Train, "length and form of training")
    batch: Batch = key(Batch, "batch sizes")
    evaluate: Evaluate = key(Evaluate, "when to evaluate")
    checkpoint: Checkpoint = key(Checkpoint, "when to save and what to keep")
    summary: Summary = key(Summary, "what can be seen while it runs")
    predict: Predict = key(Predict, "what mode=predict does")
    export: Export = key(Export, "what mode=export does")
    restart: Restart = key(Restart, "what the supervisor may do")
    preemption: Preemption = key(Preemption, "what a request to stop may take")
    watchdog: Watchdog = key(Watchdog, "how long a live process may make no progress")
    divergence: Divergence = key(Divergence, "what to do when training diverges")
    verify: Verify = key(Verify, "what mode=verify does")
    launch: Launch = key(Launch, "how workers are started")
    sweep: Sweep = key(Sweep, "how the points of a sweep are run")
    search: Search = key(Search, "how the points of a sweep are chosen")
    model: Any = key(None, "what is trained")
    dataset: Any = key(None, "what it is trained on")
    task: Any = key(None, "step and metrics")
    metrics: Any = key(None, "further metrics of the test split; several with metrics=[a,b]")
    optimizer: Any = key(None, "how weights are updated")
    schedule: Any = key(None, "learning rate over time")
    strategy: Any = key(None, "which hardware, and how it works together")
    callbacks: Any = key(None, "what is told of the run's events")
    fault: Any = key(None, "failures to rehearse; several with fault=[a,b]")
    choices: Any = key(None, "which choice was made in each group; filled in")
