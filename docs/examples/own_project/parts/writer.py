"""Your own writer: one line of text for each report."""

from trainer.summaries.writers.writer import Writer


class Text(Writer):
    network = None

    def __init__(self, run_dir, position):
        self.path = run_dir / "metrics.txt"

    def scalars(self, split, step, values):
        with self.path.open("a") as file:
            file.write(f"{split} {step} {values['loss']}\n" if "loss" in values else "")
