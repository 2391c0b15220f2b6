"""The interface of a writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


class Writer:
    """Shows metrics and more during a run; a writer ignores the kinds that it cannot show.

    The `_target_` of a writer is called with the run directory (a Path) and the position of the
    run, the number of updates already reported, and with its options by name. Of what an earlier
    attempt wrote, everything after the position is superseded.

    Only the chief writes, each writer in its own thread. Splits are `train`, `test` and
    `validation`; a step is the number of updates made.

    A constant `network` of a class declares whether it uses the network: None if it never does, or
    the name of the environment variable that may make it. Without it a cluster of this machine is
    not isolated. It is not inherited. A constant `requires` names a package, and what pip is to
    install for it. A constant `sidecar` is the dotted path of the class that the sidecar evaluator
    opens instead, while the chief writes too; None: it opens none. All are read from the source.
    """

    def hyperparameters(self, values: Mapping[str, bool | int | float | str]) -> None:
        """Show the hyperparameters of the run, by dotted key; called first, also on resume."""

    def scalars(self, split: str, step: int, values: Mapping[str, float]) -> None:
        """Show the metrics of a split."""

    def images(self, split: str, step: int, name: str, images: np.ndarray) -> None:
        """Show images, [N, H, W, C] uint8, with C of 1 (gray), 3 or 4."""

    def histogram(self, split: str, step: int, name: str, values: np.ndarray) -> None:
        """Show the distribution of values of any shape."""

    def texts(self, split: str, step: int, name: str, texts: Sequence[str]) -> None:
        """Show texts that a model wrote."""

    def text(self, name: str, text: str) -> None:
        """Show a text about the whole run, in Markdown."""

    def graph(self, graph_def: bytes) -> None:
        """Show a serialized GraphDef; called again when the run resumes."""

    def settle(self) -> None:
        """Return when everything written so far outlives this process."""

    def flush(self) -> None:
        """Store everything written so far durably."""

    def close(self) -> None:
        """Store everything durably and stop writing."""
