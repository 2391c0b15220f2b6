"""Which messages of the processes of an attempt the user sees."""

from __future__ import annotations

from trainer.cluster import messages
from trainer.cluster.messages import Message
from trainer.cluster.spec import ProcessId


class ShownMessages:
    """Chooses the messages: those of the first process, and those about the whole run.

    Args:
        first: the first process.
    """

    def __init__(self, first: ProcessId) -> None:
        self._first = first
        self._has_shown_error = False

    def includes(self, process_id: ProcessId, message: Message) -> bool:
        """Return whether the user sees a message: of the first process, or of the whole run."""
        is_evaluator = process_id.is_evaluator
        match message:
            case messages.Crash() if process_id.is_actor:
                return False  # it is replaced
            case messages.Problem() | messages.Crash():
                is_first_error = not self._has_shown_error
                self._has_shown_error = True
                return is_first_error
            case messages.FaultNotice():
                return True
            case messages.Line() | messages.Opening() | messages.Evaluated() if is_evaluator:
                return True
            case messages.Line() if message.is_warning:
                return True
        return process_id == self._first
