"""The commands in addition to training: `python train.py <command> ...`."""

COMMANDS = {
    "help": ("[topic ...]", "a group, choice, key or command explained; all: everything"),
    "runs": (
        "[folder]",
        "the runs of a folder (runs/): what differs, state, best metric, time",
    ),
    "checkpoints": ("[runs/<run>]", "what a run has saved, verified"),
    "diff": ("[runs/<run> runs/<run>]", "in which keys two runs differ"),
    "ui": ("[folder]", "the runs of a folder (runs/) in the browser, while they train"),
    "report": ("[runs/<run> ...]", "the results of runs, as one HTML page that needs no network"),
    "slurm": (
        "... --<option>",
        "the Slurm job script of a run, or of a sweep (-m); --submit: submit it",
    ),
    "status": ("[runs/<run>]", "what each process of a run does, on whichever host"),
    "cache": ("[--clear]", "the copies of data that are kept on this machine, and removes them"),
}
"""The commands: name -> what it takes, and what it shows."""
