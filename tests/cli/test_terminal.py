"""Lines and tables on a terminal and elsewhere."""

import io

from tests.support.terminal import FakeTerminal, screen_of
from trainer.cli.terminal import Terminal

ROWS = [
    ("run", "what differs", "state", "best accuracy", "age"),
    ("a-5cf383baf108", "model=softmax batch=128 lr=0.25", "done", "0.5000 at 10", "2 min"),
]


def shown(columns, show, file=None):
    file = file or FakeTerminal()
    show(Terminal(file, columns))
    return screen_of(file.getvalue(), colors=True)


def test_table_that_is_too_wide_wraps_one_column_between_words_or_loses_the_last():
    def table(terminal):
        terminal.show_table(ROWS, "<<<>>", fewest=3)

    plain = [
        "run             what differs                     state  best accuracy    age",
        "a-5cf383baf108  model=softmax batch=128 lr=0.25  done    0.5000 at 10  2 min",
    ]
    assert shown(20, table, io.StringIO()) == plain
    assert shown(len(plain[0]), table) == plain
    assert shown(64, table) == [
        "run             what differs                     state",
        "a-5cf383baf108  model=softmax batch=128 lr=0.25  done",
    ]
    assert shown(50, table) == [
        "run             what differs                 state",
        "a-5cf383baf108  model=softmax batch=128      done",
        "                lr=0.25",
    ]
