"""The errors a user can meet, by whose they are to mend. Each message is one line: what, the value, the rule, the fix."""


class ConfigError(ValueError):
    """The user's to mend: a wrong configuration or input. Raised before anything is touched; exit code 2.

    Attributes:
        problems: one line per problem, all that were found at once.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class CheckpointError(OSError):
    """The environment's: a checkpoint that cannot be written, or none that can be trusted; exit code 1."""


class StorageError(OSError):
    """The environment's: a file of the run that cannot be written; exit code 1."""


class DivergedError(RuntimeError):
    """The run's: processes that must be in the same state are not; exit code 1."""


class NonFiniteError(ArithmeticError):
    """The run's: a loss or gradient that is not finite; exit code 1."""
