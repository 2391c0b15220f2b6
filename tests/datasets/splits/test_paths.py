from pathlib import Path

import pytest

from trainer.datasets.splits.paths import Paths, find_files, find_splits


def list_files(path: Paths, key: str) -> list[Path]:
    return find_files(path, key, suffixes=(".csv",))


def write(folder: Path, *names: str) -> str:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return str(folder)


@pytest.mark.parametrize(
    ("names", "sizes"),
    [
        (["train/a.csv", "test/a.csv", "test/b.csv"], {"train": 1, "test": 2}),
        (["train/a.csv", "val/a.csv"], {"train": 1, "validation": 1}),
        (
            ["train/a.csv", "validation/a.csv", "test/a.csv"],
            {"train": 1, "validation": 1, "test": 1},
        ),
        (["train/a.csv", "test.csv"], {"train": 1}),
        (["train-1.csv", "train-2.csv", "my.val.csv"], {"train": 2, "validation": 1}),
        (["train.csv", "val.csv", "test_a.csv"], {"train": 1, "validation": 1, "test": 1}),
        (["train.csv", "trained.csv"], {"train": 2}),
        (["a.csv", "test.csv"], {"train": 1, "test": 1}),
        (["a.csv", "my.test.csv"], {"train": 2}),
        (["test.csv", "test_b.csv"], {"train": 2}),
    ],
)
def test_folders_or_names_of_files_tell_the_splits(
    tmp_path: Path, names: list[str], sizes: dict[str, int]
) -> None:
    splits = find_splits(write(tmp_path, *names), None, list_files)
    assert {name: len(files) for name, (_, files) in splits.present.items()} == sizes
    assert splits.by_name == (len(sizes) > 1 and not (tmp_path / "train").is_dir())


def test_files_of_no_split_are_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write(tmp_path, "train.csv", "test.csv", "more.csv")
    assert find_splits(folder, None, list_files).train.files == [tmp_path / "train.csv"]
    assert "such as more.csv, are not used" in caplog.text


def test_test_path_and_lists_name_their_files(tmp_path: Path) -> None:
    write(tmp_path, "train.csv", "test.csv", "b/train.csv")
    splits = find_splits(str(tmp_path), str(tmp_path / "b"), list_files)
    assert [len(files) for _, files in splits.present.values()] == [2, 1]
    assert not splits.by_name
    names = [str(tmp_path / "test.csv"), str(tmp_path)]
    files = find_splits(names, None, list_files).train.files
    assert [file.name for file in files] == ["test.csv", "train.csv"]


def test_folder_without_files_to_train_on_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has test/ but no train/"):
        find_splits(write(tmp_path, "test/a.csv"), None, list_files)
    with pytest.raises(ValueError, match="both val/ and validation/"):
        find_splits(write(tmp_path / "both", "val/a.csv", "validation/a.csv"), None, list_files)
    with pytest.raises(ValueError, match=r"path \(null\)"):
        find_splits(None, None, list_files)
    with pytest.raises(FileNotFoundError, match=r"no \.csv file in it"):
        find_splits(write(tmp_path / "none", "a.txt"), None, list_files)
