"""Which messages of the processes of an attempt the user sees."""

from __future__ import annotations

from trainer.cluster import messages
from trainer.cluster.messages import Message
from trainer.cluster.spec import Cluster, ProcessId
from trainer.config.schema import Launch


class Visibility:
    """Decides what is shown: what the first process sends, and what concerns the whole run.

    Attributes:
        has_shown_error: whether an error of a process was shown.

    Args:
        first: the process whose lines and progress are shown.
    """

    def __init__(self, first: ProcessId) -> None:
        self.has_shown_error = False
        self._first = first

    def shows(self, process_id: ProcessId, message: Message) -> bool:
        """Return whether a message is shown: of all errors, the first."""
        match message:
            case messages.Crash() if process_id.is_actor:
                return False  # it is replaced: see `Attempt`
            case messages.Problem() | messages.Crash():
                is_first = not self.has_shown_error
                self.has_shown_error = True
                return is_first
            case messages.FaultNotice():
                return True
            case messages.Line() | messages.Evaluated() if process_id.is_evaluator:
                return True
            case messages.Line() if message.is_warning:
                return True
        return process_id == self._first


def is_quiet(cluster: Cluster, launch: Launch) -> bool:
    """Return whether a command prints nothing but warnings and errors.

    Of commands that a scheduler has started together the chief prints the progress of all.
    """
    return cluster.is_scheduled and not cluster.is_chief and launch.console == "chief"
