"""A data format of a user's own: a function over files, without an edit in the project."""

import textwrap
from pathlib import Path

import pytest

from tests.support.dataset_contract import arrays
from trainer.annotations import Free
from trainer.cli.compose import compose
from trainer.config.instantiate import instantiate
from trainer.runs.identity import changes, leaves, run_name

FORMAT = """
    from pathlib import Path
    from typing import Annotated

    from trainer.annotations import Free, OneOf
    from trainer.datasets.images.images import ImageOptions
    from trainer.datasets.indexed import Sources, from_sources
    from trainer.datasets.records.fields import Fields


    def lines(
        *,
        path: Annotated[str, Free(names_run=True)],
        test_path: Annotated[str, Free(names_run=True)],
        cache: Annotated[str, OneOf("none", "disk"), Free()] = "none",
    ):
        '''Lines of numbers, the last of which is the class.'''
        files = [Path(path), Path(test_path)]
        train, test = ([numbers(line) for line in file.open()] for file in files)
        return from_sources(
            Sources(train, test, files=files), Fields(num_classes=2), ImageOptions(cache=cache)
        )


    def numbers(line):
        *features, label = line.split(",")
        return [float(number) for number in features], int(label)
"""


NODE = "_target_: own_format.lines\npath: null\ntest_path: null\ncache: none\n"


@pytest.mark.slow
def test_own_format_has_paths_cache_and_identity_without_an_edit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_format.py").write_text(textwrap.dedent(FORMAT))
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "lines.yaml").write_text(NODE)
    file, moved = tmp_path / "a.txt", tmp_path / "b.txt"
    file.write_text("1,2,0\n3,4,1\n5,6,1\n7,8,0\n")

    def composed(path: Path, *more: str):
        paths = [f"dataset.path={path}", f"dataset.test_path={path}"]
        return compose(["dataset=lines", "model=mlp", *paths, *more], tmp_path)

    plain = composed(file)
    assert run_name(composed(moved)) != run_name(plain)
    assert run_name(composed(file, "dataset.cache=disk")) == run_name(plain)
    differing = changes(leaves(plain), leaves(composed(moved, "dataset.cache=disk")))
    assert {type(change.effect) for change in differing} == {Free}

    def cached():
        return instantiate(composed(file, "dataset.cache=disk").dataset, "dataset")

    assert arrays(cached().train, [1, 0])["features"].tolist() == [[3, 4], [1, 2]]
    # The cache is of these files as they are.
    file.write_text("1,2,0\n30,4,1\n5,6,1\n7,8,0\n")
    assert arrays(cached().train, [1])["features"].tolist() == [[30, 4]]
