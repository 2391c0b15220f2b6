"""What was removed is refused by its name, with what to use instead."""

import pytest

from trainer.cli.compose import compose
from trainer.cli.overrides import rewrite
from trainer.config.removed import REMOVED
from trainer.errors import ConfigError


@pytest.mark.parametrize("name", REMOVED)
def test_removed_is_refused_with_its_replacement(name: str) -> None:
    override = name if "=" in name else f"{name}=1"
    with pytest.raises(ConfigError) as error:
        compose(rewrite([override])[0])
    assert str(error.value) == f"{name} was removed; {REMOVED[name]}"


@pytest.mark.parametrize("name", [name for name in REMOVED if "=" not in name])
def test_parts_and_additions_of_a_removed_key_are_refused(name: str) -> None:
    for override in (f"+{name}.part=1", f"++{name}=1", f"~{name}"):
        with pytest.raises(ConfigError, match="was removed; "):
            rewrite([override])
