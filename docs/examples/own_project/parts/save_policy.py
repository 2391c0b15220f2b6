"""Your own save policy: after some steps, and then only at the end."""

import sys


class AtSteps:
    def __init__(self, epochs, *, steps: list[int]):
        self.steps = steps

    def next_after(self, step):
        return min((due for due in self.steps if due > step), default=sys.maxsize)
