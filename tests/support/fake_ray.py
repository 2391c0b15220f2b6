"""The part of Ray that the command uses, without processes."""

from types import SimpleNamespace


class RayError(Exception):
    """Ray's own errors."""


class RayTaskError(RayError):
    """A method has raised an error."""

    def __init__(self, cause):
        super().__init__(f"task failed: {cause}")
        self.cause = cause


class GetTimeoutError(RayError):
    """An answer takes too long."""


class Pending:
    """The answer of an actor that has not started."""


class Actor:
    """An actor whose methods answer from lists; an exception in a list is raised by `get`."""

    def __init__(self, **answers):
        self._answers = {name: list(values) for name, values in answers.items()}

    def __getattr__(self, name):
        def call(*arguments):
            values = self._answers.get(name)
            return values.pop(0) if values else None

        return SimpleNamespace(remote=call)


class FakeRay:
    """The module `ray`."""

    exceptions = SimpleNamespace(
        RayError=RayError, RayTaskError=RayTaskError, GetTimeoutError=GetTimeoutError
    )

    def get(self, answers, timeout=None):
        """Return answers; raise the first that is an exception."""
        several = answers if isinstance(answers, list) else [answers]
        for answer in several:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def wait(self, answers, num_returns, timeout):
        """Return the answers that are there, and the others."""
        ready = [answer for answer in answers if not isinstance(answer, Pending)]
        return ready, [answer for answer in answers if isinstance(answer, Pending)]

    def kill(self, actor):
        """Do nothing."""
