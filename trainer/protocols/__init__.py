"""The interfaces of what users write, and of what the engine gives it: all are structural.

A class of a user needs no base class and imports nothing from here.
"""

from trainer.protocols.acting import Acts, Buffer, Environment, EnvSpec, Unroll
from trainer.protocols.data import (
    DEFAULTS,
    Batch,
    Dataset,
    Fitted,
    HasFiles,
    OptionalDataset,
    OptionalSplit,
    Split,
    Stream,
    optional,
)
from trainer.protocols.labels import IN_WORDS, PREDICTIONS, KnownLabels, LabelKind, label_kind_of
from trainer.protocols.metrics import HasFigures, Metric, SampleMetric
from trainer.protocols.nodes import ModelNode, Node, OptimizerNode, ScheduleNode
from trainer.protocols.replicas import Replica, Worker
from trainer.protocols.task import (
    Callback,
    DerivesMetrics,
    Embeds,
    Generates,
    HasPictures,
    LossFn,
    Metrics,
    PerExample,
    PerExampleMetrics,
    Serves,
    StepContext,
    Task,
    TaskParts,
)
from trainer.protocols.texts import HasTokenizer, Sampling, Tokenizer, WritesText

__all__ = [
    "DEFAULTS",
    "IN_WORDS",
    "PREDICTIONS",
    "Acts",
    "Batch",
    "Buffer",
    "Callback",
    "Dataset",
    "DerivesMetrics",
    "Embeds",
    "EnvSpec",
    "Environment",
    "Fitted",
    "Generates",
    "HasFigures",
    "HasFiles",
    "HasPictures",
    "HasTokenizer",
    "KnownLabels",
    "LabelKind",
    "LossFn",
    "Metric",
    "Metrics",
    "ModelNode",
    "Node",
    "OptimizerNode",
    "OptionalDataset",
    "OptionalSplit",
    "PerExample",
    "PerExampleMetrics",
    "Replica",
    "SampleMetric",
    "Sampling",
    "ScheduleNode",
    "Serves",
    "Split",
    "StepContext",
    "Stream",
    "Task",
    "TaskParts",
    "Tokenizer",
    "Unroll",
    "Worker",
    "WritesText",
    "label_kind_of",
    "optional",
]
