"""Exit codes of a worker, and of the command but for the last: 128 + signal is a stop on request, after saving."""

DONE = 0
CRASHED = 1
WRONG_INPUT = 2
RESTARTABLE = 75  # EX_TEMPFAIL of sysexits.h: asks the supervisor to try again; users never see it
