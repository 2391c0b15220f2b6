"""What evaluates a split, whatever the task: examples, episodes or features."""

from __future__ import annotations

from typing import TypeAlias

from trainer.engine.embedding_evaluator import EmbeddingEvaluator
from trainer.engine.episode_evaluator import EpisodeEvaluator
from trainer.engine.evaluator import Evaluator

AnyEvaluator: TypeAlias = Evaluator | EpisodeEvaluator | EmbeddingEvaluator
