"""The interfaces of what users write, and of what the engine gives it: all are structural.

A class of a user needs no base class and imports nothing from here.
"""

from trainer.protocols.acting import Acts, Buffer, Environment, EnvSpec, LoopDefaults, Unroll
from trainer.protocols.callbacks import EVENTS, CallbackDefaults
from trainer.protocols.data import (
    IN_WORDS,
    PREDICTIONS,
    Batch,
    Dataset,
    DatasetDefaults,
    Fitted,
    HasFiles,
    KnownLabels,
    LabelKind,
    MetricKind,
    Split,
    SplitDefaults,
    Stream,
    label_kind_of,
    paths,
)
from trainer.protocols.defaults import lacking, names_of, with_defaults
from trainer.protocols.metrics import HasFigures, Metric, MetricDefaults
from trainer.protocols.optimizers import OptimizerDefaults
from trainer.protocols.task import (
    STATES,
    HasTokenizer,
    LossFn,
    Metrics,
    ModelNode,
    Node,
    OptimizerNode,
    PartLoss,
    PerExample,
    PerExampleMetrics,
    Replica,
    Sampling,
    ScheduleNode,
    Served,
    StepContext,
    Task,
    TaskDefaults,
    TaskParts,
    Tokenizer,
    Worker,
)
