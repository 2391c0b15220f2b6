"""English sentences of a small grammar: a text to learn a language model from, without a download.

The grammar is a probabilistic context-free one. A text has one derivation, so its entropy is that
of the choices in it (Grenander 1976), 0.3008 nats a byte: no model of its bytes has a smaller
expected loss. Subjects and verbs agree in number, also with a clause between them.
"""

from __future__ import annotations

import random
import re
from bisect import bisect
from collections.abc import Callable
from itertools import accumulate
from typing import Annotated

import numpy as np

from trainer.annotations import Ge, Gt, Lt
from trainer.datasets.text_windows import WindowDataset, divided
from trainer.datasets.texts.tokens import BYTES, load_tokenizer

Rules = dict[str, list[tuple[float, list[str]]]]
"""Symbol -> what it may become: a probability, and parts, of which every second is a symbol."""

_SEED = 0
_START = "line"
_GRAMMAR = """
line: 5 <Clause>.^ | 2 <When>, <clause>.^ | 2 <Clause>, but <clause>.^ | 2 <said> <clause>.^
said: 1 <name> said that
Clause: 3 The <noun> <of_one> | 2 The <noun>s <of_many> | 2 <name> <does>
clause: 3 the <noun> <of_one> | 2 the <noun>s <of_many> | 2 <name> <does>
of_one: 4 <does> | 1 that <does> <does> | 2 near <thing> <does>
of_many: 4 <do> | 1 that <do> <do> | 2 near <thing> <do>
does: 4 <see>s <thing> | 3 <sleep>s <where> | 2 is <happy>
do: 4 <see> <thing> | 3 <sleep> <where> | 2 are <happy>
thing: 3 the <noun> | 2 the <noun>s | 2 the <happy> <noun> | 2 <name>
where: 3 in the <place> | 2 behind the <place> | 1 near the <happy> <place>
When: 2 In the morning | 2 At night | 1 If the <place> is <happy>
name: 1 Ada | 1 Boris | 1 Clara | 1 Dmitri | 1 Elena
noun: 3 bird | 3 cat | 2 dog | 2 farmer | 1 sailor | 1 teacher
see: 3 see | 2 hear | 2 follow | 1 remember | 1 love
sleep: 2 sleep | 2 sing | 2 wait | 1 dream
happy: 2 happy | 2 old | 1 quiet | 1 small | 1 yellow
place: 3 garden | 2 house | 2 forest | 1 harbour
"""  # after a symbol its choices, each after its weight; ^ ends a line


def sentences(
    *,
    characters: Annotated[int, Ge(1000)] = 200_000,
    length: Annotated[int, Ge(1)] = 64,
    test_fraction: Annotated[float, Gt(0), Lt(1)] = 0.1,
) -> WindowDataset:
    """Lines of English that a grammar makes, always the same ones; a token is a byte."""
    tokens = np.frombuffer(make_text(characters).encode(), np.uint8)
    return divided({"train": tokens}, test_fraction, load_tokenizer(BYTES), length)


def make_text(characters: int) -> str:
    """Return whole lines, of at least so many characters."""
    rules = parse_rules(_GRAMMAR)
    # Python promises the numbers of `random()` for a seed, in all versions.
    draw = random.Random(_SEED).random
    lines: list[str] = []
    count = 0
    while count < characters:
        lines.append(_derive(rules, draw))
        count += len(lines[-1])
    return "".join(lines)


def parse_rules(grammar: str) -> Rules:
    """Return the rules of a grammar."""
    rules: Rules = {}
    for line in grammar.strip().splitlines():
        symbol, _, right = line.partition(": ")
        choices = [choice.strip().split(" ", 1) for choice in right.split(" | ")]
        total = sum(int(weight) for weight, _ in choices)
        rules[symbol] = [
            (int(weight) / total, re.split("<(.*?)>", text.replace("^", "\n")))
            for weight, text in choices
        ]
    return rules


def _derive(rules: Rules, draw: Callable[[], float]) -> str:
    todo = [(_START, True)]
    text = ""
    while todo:
        part, is_symbol = todo.pop()
        if not is_symbol:
            text += part
            continue
        weights = [probability for probability, _ in rules[part]]
        borders = list(accumulate(weights))
        chosen = min(bisect(borders, draw()), len(borders) - 1)  # they may add up to less than 1
        parts = rules[part][chosen][1]
        todo += [(part, index % 2 == 1) for index, part in enumerate(parts)][::-1]
    return text
