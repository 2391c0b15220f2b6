"""What holds for every strategy."""

from pathlib import Path

import pytest

from trainer.cli.compose import compose
from trainer.strategies import select
from trainer.strategies.strategy import Strategy

ROOT = Path(__file__).resolve().parents[2]
CHOICES = sorted(path.stem for path in (ROOT / "conf" / "strategy").glob("*.yaml"))


@pytest.mark.parametrize("choice", CHOICES)
def test_defaults_in_yaml_are_those_in_code(choice):
    strategy = select.select_strategy(compose([f"strategy={choice}"]))
    assert isinstance(strategy, Strategy)
    assert vars(strategy) == vars(type(strategy)())
