"""What the page shows of a search, from its log alone."""

from tests.sweep.simulated_search import RATE_RANGE, World
from trainer.sweep.search_data import search_data
from trainer.sweep.study import FILE


def test_rungs_have_counts_promotions_and_the_best(tmp_path):
    World(tmp_path).sweep(method="halving")
    data = search_data(tmp_path)
    assert (data["unit"], data["metric"], data["branches"]) == ("epochs", "accuracy", [])
    best = "model=cnn learning_rate=0.01"
    assert [line[:4] for line in data["rungs"]] == [
        ["1", "9", "3", best], ["3", "3", "1", best], ["9", "1", "1", best],
        ["the end", "1", "0", best],
    ]  # fmt: skip


def test_branches_have_their_origins(tmp_path):
    command = World(tmp_path).sweep(RATE_RANGE, method="pbt", population=3, every_epochs=9.0)
    branches = search_data(tmp_path)["branches"]
    points = [result.point for result in command.results.values() if result.point.origin]
    assert [f"{line[1]} at {line[2]}" for line in branches] == [point.origin for point in points]
    assert len(branches) == 2


def test_folder_without_a_log_shows_nothing_and_a_damaged_log_its_problem(tmp_path):
    assert search_data(tmp_path) is None
    World(tmp_path).sweep(method="halving")
    with (tmp_path / FILE).open("a") as log:
        log.write("{\n")
    assert "is damaged" in search_data(tmp_path)["problem"]
    for text in ('{"search": []}', '{"search": {"goal": 1}}', '{"search": {}}\n{"event": "start"}'):
        (tmp_path / FILE).write_text(f"{text}\n")
        assert str(tmp_path / FILE) in search_data(tmp_path)["problem"]
