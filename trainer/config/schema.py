"""The typed schema of an experiment: every key, its default, its rule, one line of explanation.

Groups whose choices name a `_target_` (model, dataset, augment, env, buffer, task, metrics,
optimizer, schedule, strategy, callbacks, writers, loop, search) are free mappings here: their
schema is the target's signature, read by `trainer.config.options.targets`. No TensorFlow.
"""

# ruff: noqa: RUF009  (`key` is `dataclasses.field` with its metadata spelled out)
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any

from trainer.annotations import (
    Exists,
    Free,
    Ge,
    Gt,
    Le,
    Lt,
    OneOf,
    Semantic,
    Structural,
)
from trainer.config.faults import ACTIONS
from trainer.config.keys import BUILT_IN, key
from trainer.config.modes import MODES

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
USED = ("latest", "best")
"""Values of `checkpoint.use` in addition to a step."""
MAX_SKIPS = 1024
"""How many skipped steps a checkpoint can record."""

GROUPS = (
    "model", "dataset", "augment", "env", "buffer", "task", "metrics", "optimizer", "schedule",
    "strategy",
    "checkpoint", "callbacks", "writers", "loop", "fault", "launch", "search", "experiment",
)  # fmt: skip
NAMED_GROUPS = ("callbacks", "metrics", "writers")
"""Groups in which several may be chosen, each a node with a name."""
ONE_CHOICE = tuple(group for group in GROUPS if group not in (*NAMED_GROUPS, "fault", "experiment"))
"""Groups with a single choice; of the others several may be chosen, in a list."""
GRID_SEARCH = "trainer.sweep.search.GridSearch"
"""The default `search._target_`: a run that is no sweep has no other, nor has a launcher's."""
PAIRS = (("train.steps", "train.epochs"), ("batch.global_size", "batch.per_replica"))
"""Keys of which exactly one must be set."""


@dataclass
class Lora:
    """Low-rank adapters (LoRA, Hu et al. 2021) in layers of a Keras 3 model."""

    rank: int | None = key(None, "rank of the adapters; null: none", Ge(1))
    layers: list[str] = key(
        ["."], "regular expressions: layers whose kernels they are found in have adapters"
    )


@dataclass
class Train:
    """Length of training, and how its steps are run."""

    steps: int | None = key(
        None,
        "number of steps to train; set exactly one of steps and epochs",
        Ge(1),
        Free(names_run=True),
    )
    epochs: int | None = key(30, "number of epochs to train", Ge(1), Free(names_run=True), BUILT_IN)
    steps_per_epoch: int | None = key(
        None,
        "steps in one epoch; null: one pass over the training data",
        Ge(1),
        Semantic(),
        BUILT_IN,
    )
    steps_per_loop: int | str = key(
        "auto",
        "steps in one graph call, which stops at any save or report; auto: about a second's worth",
        OneOf("auto", or_at_least=1),
        Free(),
        BUILT_IN,
    )
    clip_norm: float | None = key(
        None,
        "clip the gradient of the global batch to this global norm; null: do not clip",
        Gt(0),
        Semantic(),
        BUILT_IN,
    )
    clip_value: float | None = key(
        None,
        "clip each element of that gradient to this absolute value; null: do not clip",
        Gt(0),
        Semantic(),
        BUILT_IN,
    )
    freeze: list[str] = key(
        [],
        "regular expressions: layers whose weights they are found in are not trained",
        Structural(),
        BUILT_IN,
    )
    lora: Lora = key(Lora, "low-rank adapters in layers of a Keras 3 model", Structural(), BUILT_IN)
    ema_decay: float | None = key(
        None,
        "decay of a moving average of the weights, which is evaluated and exported; null: none",
        Gt(0),
        Lt(1),
        Semantic(apart=(None,)),
        BUILT_IN,
    )


@dataclass
class Pause:
    """Where this command pauses a run, which the same command without it continues."""

    at_step: int | None = key(
        None,
        "save and exit with code 0 at the first evaluation from this step on; null: at the end",
        Ge(1),
    )
    at_epoch: float | None = key(
        None,
        "the same, from this number of epochs on; 0.5: when half of the data was seen",
        Gt(0),
    )


@dataclass
class Batch:
    """Batch sizes."""

    global_size: int | None = key(
        128,
        "examples in one step, over all replicas; set exactly one of global_size and per_replica",
        Ge(1),
        Le(2147483647),
    )
    per_replica: int | None = key(
        None, "examples in one step on each replica", Ge(1), Le(2147483647)
    )
    accumulate: int = key(
        1, "number of micro-batches whose gradients are added up for one step", Ge(1)
    )
    shards: int | None = key(
        None,
        "compute every step in N equal parts, so that any number of devices gives the same bits; "
        "null: one part for each replica",
        Ge(1),
    )


@dataclass
class Evaluate:
    """When to evaluate."""

    every_steps: int | None = key(None, "evaluate every N steps", Ge(1))
    every_epochs: int | None = key(
        1, "evaluate every N epochs, and always at the end of training", Ge(1)
    )
    sidecar: bool = key(
        False, "evaluate checkpoints in a separate process while training continues", Free()
    )
    episodes: int = key(20, "env: number of episodes of an evaluation", Ge(1))


@dataclass
class Actors:
    """The processes that step environments for a task that learns from them (env)."""

    count: int = key(
        2, "number of processes; others may be added in TF_CONFIG, as job actor", Ge(0), Le(1024)
    )
    environments: int = key(16, "number of environments that each of them steps", Ge(1))
    max_restarts: int = key(
        5, "how many lost actors may be replaced between two checkpoints", Ge(0)
    )


@dataclass
class Best:
    """Best checkpoints, kept in addition to the newest."""

    metric: str | None = key(
        None, "also keep the best checkpoints by this metric of the evaluations, e.g. accuracy"
    )
    mode: str = key(
        "auto",
        "whether larger (max) or smaller (min) is better; auto: as the metric declares",
        OneOf("auto", "max", "min"),
    )
    keep: int = key(1, "number of best checkpoints to keep", Ge(1))


@dataclass
class Checkpoint:
    """When to save and what to keep."""

    use: int | str = key(
        "latest",
        "what mode=evaluate, export and predict use; short: checkpoint=best, checkpoint=<step>",
        OneOf("latest", "best", or_at_least=0),
    )
    every_steps: int | None = key(None, "save every N steps", Ge(1))
    every_examples: int | None = key(None, "save every N training examples", Ge(1), BUILT_IN)
    # An int stays one, so that a record shows what was written.
    every_secs: int | float | str | None = key(
        None,
        "save when N seconds have passed since the last save; auto: an interval that balances "
        "the time of saves and lost work",
        OneOf("auto", or_above=0),
    )
    every_epochs: int | None = key(
        1, "save every N epochs, and always at the end of training", Ge(1), BUILT_IN
    )
    keep: int = key(2, "number of newest checkpoints to keep", Ge(1))
    keep_every_steps: int | None = key(
        None, "also keep every checkpoint whose step is a multiple of this", Ge(1)
    )
    save_policy: Any = key(
        None, "a custom class that adds steps at which to save: _target_ and options"
    )
    retention_policy: Any = key(
        None, "a custom class that adds checkpoints to keep: _target_ and options"
    )
    async_write: bool | None = key(
        None,
        "continue training while a checkpoint is written; null: where one command starts all "
        "processes, if the state is in memory too",
    )
    best: Best = key(Best, "best checkpoints, kept in addition to the newest", BUILT_IN)
    memory: str = key(
        "auto",
        "keep the state in memory too, for restarts; auto: where it takes little of it",
        OneOf("auto", "always", "never"),
    )
    memory_every_steps: int | None = key(
        None, "keep it every N steps; null: as often as costs 1 % of the time", Ge(1)
    )


@dataclass
class Profile:
    """The steps that TensorFlow's profiler records."""

    start: int | None = key(None, "record the steps after this one; null: record nothing", Ge(0))
    steps: int = key(20, "number of steps to record", Ge(1))


@dataclass
class Summary:
    """What is written for the user during a run."""

    every_steps: int | str = key(
        "auto",
        "write training metrics every N steps; auto: at least 100 times a run, and every 50",
        OneOf("auto", or_at_least=1),
    )
    every_epochs: int | None = key(
        None, "also write training metrics every N epochs; null: only by steps", Ge(1)
    )
    histograms: int | None = key(
        None, "write histograms of weights and gradients every N steps; null: none", Ge(1)
    )
    images: int | None = key(
        None, "write input images, as augmented for the model, every N steps; null: none", Ge(1)
    )
    misclassified: int = key(
        0, "number of misclassified examples that each evaluation shows", Ge(0), Le(100)
    )
    texts: int = key(
        2, "number of texts that a language model writes at each evaluation", Ge(0), Le(100)
    )
    graph: bool = key(False, "write the graph of the model")
    profile: Profile = key(Profile, "the steps that TensorFlow's profiler records")


@dataclass
class Sampling:
    """How a language model chooses tokens."""

    tokens: int = key(200, "number of tokens that follow a prompt", Ge(1))
    temperature: float = key(
        0.8, "larger: more surprising tokens; 0: always the most likely one", Ge(0)
    )
    top_k: int | None = key(None, "choose among the N most likely tokens; null: among all", Ge(1))
    seed: int = key(0, "seed of the choices", Ge(0))


@dataclass
class Predict:
    """mode=predict: a table with the model's output for each example."""

    split: str = key(
        "test", "split of the dataset to predict", OneOf("train", "validation", "test")
    )
    images: str | None = key(
        None,
        "a folder of image files to predict instead, preprocessed like the dataset's images",
        Exists("directory"),
    )
    prompts: str | None = key(
        None,
        "a text file with a prompt on each line, for a language model to continue",
        Exists("file"),
    )
    sampling: Sampling = key(Sampling, "how a language model chooses tokens")
    format: str = key("csv", "file format of the table", OneOf("csv", "parquet"))
    path: str | None = key(
        None,
        "file of the table; null: <run>/predictions/<split, folder or prompts>-<step>.<format>",
    )


@dataclass
class Export:
    """mode=export: a SavedModel, and further files next to it."""

    weights: str | None = key(
        "h5", "also export the weights alone, in this format; null: do not", OneOf("h5", "keras")
    )
    tflite: bool = key(False, "also export a TensorFlow Lite model")


@dataclass
class Restart:
    """How the supervisor restarts a failed attempt."""

    max_restarts: int = key(3, "how many times a failed attempt may be restarted", Ge(0))
    backoff_secs: float = key(
        1.0,
        "pause before the second restart in a row, in seconds; it doubles each time, up to 300",
        Ge(0),
    )
    standby: str = key(
        "auto",
        "have the next attempt built and compiled when one fails; auto: on CPUs, once the training "
        "has run for a while, where the memory allows",
        OneOf("auto", "always", "never"),
    )


@dataclass
class Preemption:
    """How a request to stop (SIGTERM, Ctrl-C) is handled."""

    grace_secs: float | None = key(
        None, "seconds to wait for the save before leaving without it; null: no limit", Gt(0)
    )


@dataclass
class Record:
    """What run.json records; tokens and passwords in it are masked in any case."""

    diff: bool = key(True, "record the uncommitted changes of the code; false: only their hash")


@dataclass
class Watchdog:
    """What is watched: progress, and that all processes compute the same."""

    stall_secs: float = key(300.0, "limit while a process trains or serves parameters", Ge(0.1))
    compile_secs: float = key(
        1800.0, "limit while a process starts, restores and compiles", Ge(0.1)
    )
    evaluate_secs: float = key(900.0, "limit between two batches of an evaluation", Ge(0.1))
    save_secs: float = key(1800.0, "limit while a process saves", Ge(0.1))
    audit_every_steps: int | str | None = key(
        None,
        "steps between two audits, which compare the replicas' variables; auto: at one percent of "
        "the time; null: none",
        OneOf("auto", or_at_least=1),
        BUILT_IN,
    )


@dataclass
class Divergence:
    """What to do when the loss or a gradient is not finite, or the loss jumps."""

    action: str = key(
        "stop",
        "stop: end the run; skip: drop the update; rollback: restore, and skip the samples",
        OneOf("stop", "skip", "rollback"),
    )
    spike_sigma: float | None = key(
        None,
        "a loss this many standard deviations above the mean is a spike; null: no spikes",
        Gt(0),
    )
    window: int = key(
        128,
        "number of latest losses for the mean and deviation; spikes count from then on",
        Ge(2),
        Structural(),
    )
    rollback_steps: int = key(
        1, "rollback: number of steps whose samples are skipped, the diverged one last", Ge(1)
    )
    max_skips: int = key(
        16,
        "skip, rollback: end the run when more steps than this would be skipped",
        Ge(1),
        Le(MAX_SKIPS),
    )


@dataclass
class Fault:
    """A fault to inject: an action in one process, at one moment of the run."""

    action: str | dict[str, Any] = key(
        "kill",
        "what to inject, or the _target_ of a custom function; slow lasts from then on in "
        "every attempt, the others happen once in a run",
        OneOf(*ACTIONS),
    )
    process: str = key(
        "chief",
        "which process: chief, supervisor, or a process of the run such as worker-1 or ps-0",
    )
    phase: str = key(
        "step",
        "in which phase; save: before the checkpoint is committed",
        OneOf("start", "compile", "step", "evaluate", "save"),
    )
    at: int = key(
        1,
        "phase step: after this step (nan: in it); evaluate and save: in the n-th of the attempt",
        Ge(1),
    )
    delay_secs: float = key(
        0.0,
        "seconds until the action, while the process continues; slow: length of each rest, with "
        "phase step one in each step",
        Ge(0),
    )

    @property
    def kind(self) -> str:
        """The name of the action; `own` for a function of the user's."""
        return "own" if isinstance(self.action, Mapping) else str(self.action)


@dataclass
class Verify:
    """mode=verify: train with and without kills, and compare the bits."""

    steps: int = key(
        200,
        "number of steps, at most train.steps; it evaluates and saves a few times meanwhile",
        Ge(2),
    )
    kills: int = key(3, "number of kills at random moments", Ge(1))
    seed: int | None = key(
        None, "seed of the random moments, to repeat them; null: a new one, which is printed", Ge(0)
    )


@dataclass
class Plan:
    """mode=plan: what a run would be, on hardware that need not be here."""

    replicas: int | None = key(
        None,
        "number of replicas to assume where the strategy takes all devices of a machine; null: "
        "those of this machine",
        Ge(1),
    )


@dataclass
class Devices:
    """Which hardware a run may use, regardless of its strategy."""

    gpus: int | None = key(
        None, "number of GPUs to use, the first of the machine; 0: none; null: all", Ge(0)
    )
    threads: int | None = key(
        None,
        "threads among which a process splits an operation on the CPU; null: one a core, and with "
        "batch.shards as many as when the run began",
        Ge(1),
        Le(1024),
    )


@dataclass
class Ray:
    """Where Ray places the processes of a run (`launch.engine=ray`)."""

    address: str | None = key(
        None,
        "host:port of the head of the Ray cluster that this machine belongs to; null: RAY_ADDRESS, "
        "else a cluster that runs on this machine, else one is started for the command",
    )
    cpus: int = key(1, "CPUs of each process, as Ray counts them", Ge(0))
    gpus: int = key(0, "GPUs of each process", Ge(0))
    placement: str = key(
        "spread",
        "processes on many nodes or on few; strict: each on a different node, or all on one",
        OneOf("spread", "pack", "strict_spread", "strict_pack"),
    )
    timeout_secs: float = key(300.0, "seconds to wait until Ray has placed all processes", Gt(0))
    min_workers: int | None = key(
        None,
        "least number of workers to continue with if Ray has no place for all; null: all",
        Ge(1),
    )
    rejoin_secs: float = key(
        60.0, "seconds to wait for places before it continues with fewer", Ge(0)
    )


@dataclass
class Launch:
    """How workers are started."""

    engine: str = key(
        "local",
        "what starts the processes: local: this command, on this machine; ray: a Ray cluster",
        OneOf("local", "ray"),
    )
    ray: Ray = key(Ray, "where Ray places the processes")
    inline: bool = key(
        False,
        "train in the process of the command, for a debugger, instead of in supervised workers",
    )
    console: str = key(
        "chief",
        "whose progress is printed where a scheduler has started the processes",
        OneOf("chief", "all"),
    )

    @property
    def uses_ray(self) -> bool:
        """Whether the processes are actors of a Ray cluster."""
        return self.engine == "ray"


@dataclass
class Store:
    """Runs in a store: runs_dir=s3://bucket/folder, gs://bucket/..."""

    work_dir: str = key(
        "~/.cache/steadfast", "folder of this machine in which such runs work; kept for restarts"
    )
    lease_secs: float = key(
        15.0,
        "another process may take over a run that has sent no heartbeat for this time",
        Ge(1),
    )
    retry_secs: float = key(
        300.0, "how long the store may fail before the run continues without it", Ge(0)
    )


@dataclass
class Sweep:
    """How the points of a sweep (`-m`) are run, and how its summary is sorted."""

    name: str | None = key(
        None, "the summary is written to <runs_dir>/sweeps/<name>; null: a name from the swept keys"
    )
    jobs: int = key(
        1,
        "number of points that train at a time; cores and GPUs are divided among them",
        Ge(1),
        Le(1024),
    )
    max_hours: float | None = key(
        None,
        "hours after which the running points save and this command ends; null: no limit",
        Gt(0),
    )
    max_steps: int | None = key(
        None,
        "steps of all points together after which no further point starts; null: no limit",
        Ge(1),
    )
    on_error: str = key(
        "continue",
        "after a failed point: run the others, or stop the sweep",
        OneOf("continue", "stop"),
    )
    metric: str | list[str] | None = key(
        None,
        "metric that sorts the summary, or a list of them, whose Pareto front comes first; null: "
        "the primary metric of the task",
    )
    mode: str | list[str] = key(
        "auto",
        "whether larger (max) or smaller (min) is better; auto: as the metric declares; a list "
        "has one for each metric",
        OneOf("auto", "max", "min"),
    )


@dataclass
class Experiment:
    """The whole configuration of a run."""

    name: str | None = key(
        None,
        "first part of the run directory's name; null: <model>-<dataset>, or <task>-<dataset>",
        Free(),
    )
    runs_dir: str = key("runs", "folder of the run directories", Free())
    seed: int = key(0, "the only source of randomness", Ge(0), Le(9007199254740991), Semantic())
    mode: str = key(
        "train",
        "; ".join(f"{name}: {mode.help}" for name, mode in MODES.items()),
        OneOf(*MODES),
        Free(),
    )
    precision: str = key(
        "float32",
        "numeric precision: float32, mixed_bfloat16 or mixed_float16",
        OneOf(*PRECISIONS),
        Semantic(apart=("mixed_float16",)),
    )
    jit: bool = key(False, "compile forward and backward pass with XLA", Semantic(), BUILT_IN)
    eager: bool = key(
        False,
        "run each operation immediately, without compiling steps: slow, for a debugger or print; "
        "best with launch=inline",
        Semantic(),
        BUILT_IN,
    )
    deterministic: bool = key(
        False,
        "use deterministic kernels; needed to repeat a run bit for bit on a GPU, not on a CPU",
        Semantic(),
    )
    resume: str = key(
        "auto",
        "auto: continue this run if it exists; never: start a new one; or a run directory",
        Free(),
    )
    resume_allow: list[str] = key(
        [],
        "keys that may differ on resume despite other results, e.g. [optimizer.learning_rate]",
        Free(),
    )
    init_from: str | None = key(
        None,
        "start with the weights, and nothing else, of this run, checkpoint, or .keras, .h5 or .npz "
        "file",
        Exists("checkpoint"),
        Semantic(),
        BUILT_IN,
    )
    init_state: bool = key(
        False,
        "start with the whole state of the checkpoint of init_from, its step and optimizer too: a "
        "branch of that run",
        Semantic(),
        BUILT_IN,
    )
    init_allow: list[str] = key(
        [],
        "regular expressions: weights that init_from may lack, or have in another shape, and that "
        "then start fresh",
        Semantic(),
        BUILT_IN,
    )
    init_rename: Any = key(
        None,
        "regular expression: what replaces it in the names of init_from's weights, e.g. "
        "{backbone/: encoder/}",
        Semantic(),
        BUILT_IN,
    )
    train: Train = key(Train, "length of training, and how its steps are run")
    pause: Pause = key(Pause, "where this command pauses", Free(), BUILT_IN)
    batch: Batch = key(Batch, "batch sizes", Semantic(), BUILT_IN)
    evaluate: Evaluate = key(Evaluate, "when to evaluate", Semantic(), BUILT_IN)
    actors: Actors = key(
        Actors, "the processes that step environments, with env=<choice>", Free(), BUILT_IN
    )
    checkpoint: Checkpoint = key(Checkpoint, "when to save and what to keep", Free())
    summary: Summary = key(
        Summary,
        "what is written during a run: metrics, images, profiles",
        Free(),
        BUILT_IN,
    )
    predict: Predict = key(Predict, "settings of mode=predict", Free(), BUILT_IN)
    export: Export = key(Export, "settings of mode=export", Free(), BUILT_IN)
    restart: Restart = key(Restart, "how a failed attempt is restarted", Free())
    preemption: Preemption = key(Preemption, "how a request to stop is handled", Free())
    watchdog: Watchdog = key(
        Watchdog,
        "seconds without progress after which an attempt is restarted, and audits",
        Free(),
    )
    divergence: Divergence = key(
        Divergence, "what to do when training diverges", Semantic(), BUILT_IN
    )
    plan: Plan = key(Plan, "settings of mode=plan", Free())
    verify: Verify = key(Verify, "settings of mode=verify", Free())
    devices: Devices = key(
        Devices, "which hardware may be used, regardless of the strategy", Free(names_run=True)
    )
    store: Store = key(Store, "runs in an object store", Free())
    record: Record = key(Record, "what is recorded of the code", Free())
    launch: Launch = key(Launch, "how workers are started", Free())
    sweep: Sweep = key(Sweep, "how the points of a sweep are run", Free())
    search: Any = key(None, "how the points of a sweep are chosen", Free())
    model: Any = key(None, "what is trained", Structural(), BUILT_IN)
    dataset: Any = key(
        None, "the data it is trained and tested on", Semantic(), BUILT_IN, target=Structural()
    )
    augment: Any = key(None, "random changes of the images in training", Semantic(), BUILT_IN)
    env: Any = key(
        None,
        "the environment it acts in, instead of a dataset",
        Semantic(),
        BUILT_IN,
        target=Structural(),
    )
    buffer: Any = key(
        None, "env: where unrolls of actors wait until they are trained on", Semantic(), BUILT_IN
    )
    task: Any = key(
        None, "loss, metrics and training step", Semantic(), BUILT_IN, target=Structural()
    )
    metrics: Any = key(
        None, "additional metrics of the test split; several with metrics=[a,b]", Free(), BUILT_IN
    )
    optimizer: Any = key(
        None, "how the weights are updated", Semantic(), BUILT_IN, target=Structural()
    )
    schedule: Any = key(None, "how the learning rate changes over time", Semantic(), BUILT_IN)
    strategy: Any = key(
        None, "the devices, and how training is distributed over them", Free(names_run=True)
    )
    callbacks: Any = key(
        None,
        "objects that are called at the events of a run",
        Semantic(),
        BUILT_IN,
        target=Structural(),
    )
    writers: Any = key(None, "where metrics are written; several with writers=[a,b]", Free())
    loop: Any = key(
        None,
        "the training loop: the built-in one, or a custom function",
        Semantic(),
        target=Structural(),
    )
    fault: dict[str, Fault] | None = key(
        None, "faults to inject; several with fault=[a,b]", Semantic()
    )
    choices: Any = key(None, "the choice in each group; filled in by the program", Free())

    @property
    def trains(self) -> bool:
        """Whether mode=train: no other mode writes the files of the training."""
        return self.mode == "train"

    @property
    def needs_run(self) -> bool:
        """Whether its mode is about a run that exists."""
        return self.mode in MODES and MODES[self.mode].needs_run

    @property
    def own_loop(self) -> str | None:
        """The dotted path of the user's loop; None: the built-in one trains."""
        return (self.loop or {}).get("_target_")

    @property
    def data_group(self) -> str:
        """The group of the data: `env` or `dataset`."""
        return "dataset" if self.env is None else "env"


@dataclass
class _OfDataset:
    validation: float | str | None = key(
        None,
        "fraction of the training split to validate on, or a path; null: use the test split",
    )


@dataclass
class _OfOptimizer:
    learning_rate: float = key(
        MISSING, "peak learning rate; the schedule group shapes it over time", Gt(0)
    )
    groups: dict[str, Any] | None = key(
        None,
        "regular expression -> options of the weights whose paths it matches, e.g. "
        "{head: {learning_rate: 10x}}",
    )
    layer_decay: float | None = key(
        None,
        "learning rate of a layer as a fraction of the next one's; null: all layers have the same",
        Gt(0),
        Le(1),
    )
    lazy: bool | None = key(
        None,
        "true: update only those rows of a large embedding that the batch looks up; null: all rows "
        "move, e.g. by Adam's momentum",
    )


@dataclass
class _OfSchedule:
    reference_batch: int | None = key(
        None,
        "scale the learning rate by global batch / this (linear scaling; Goyal et al., 2017); "
        "null: leave it as it is",
        Ge(1),
    )


@dataclass
class _OfWriter:
    tracker: bool | None = key(
        None, "the run continues without this writer if it fails; it catches up from metrics.jsonl"
    )


ENGINE_KEYS: Mapping[str, Mapping[str, Field[Any]]] = {
    group: {item.name: item for item in fields(keys)}
    for group, keys in {
        "dataset": _OfDataset,
        "optimizer": _OfOptimizer,
        "schedule": _OfSchedule,
        "writers": _OfWriter,
    }.items()
}
"""Keys next to a `_target_` that the engine reads itself, by group and name."""
