"""What the page shows of a search, from its log alone."""

from tests.sweep.simulated_search import RATE_RANGE, World
from trainer.sweep.search_data import search_data
from trainer.sweep.study import FILE


def test_rungs_have_counts_promotions_and_the_best(tmp_path):
    World(tmp_path).sweep(method="halving")
    data = search_data(tmp_path)
    assert (data["unit"], data["metric"]) == ("epochs", "accuracy")
    best = "model=cnn learning_rate=0.01"
    assert [line[:4] for line in data["rungs"]] == [
        ["1", "9", "3", best], ["3", "3", "1", best], ["9", "1", "1", best],
        ["the end", "1", "0", best],
    ]  # fmt: skip
    assert sorted(len(point["ends"]) for point in data["points"]) == [1] * 6 + [2] * 2 + [4]


def test_branches_begin_where_their_origins_paused(tmp_path):
    command = World(tmp_path).sweep(RATE_RANGE, method="pbt", population=3, every_epochs=9.0)
    points = search_data(tmp_path)["points"]
    origins = [result.point.origin for result in command.results.values() if result.point.origin]
    branches = [point for point in points if point["origin"]]
    steps = [origin.replace(" at ", " at step ") for origin in origins]
    assert [point["label"].partition("from point ")[2] for point in branches] == steps
    assert len(branches) == 2
    ends = [end for point in points for end in point["ends"]]
    assert all(point["origin"] in ends for point in branches)


def test_folder_without_a_log_shows_nothing_and_a_damaged_log_its_problem(tmp_path):
    assert search_data(tmp_path) is None
    World(tmp_path).sweep(method="halving")
    with (tmp_path / FILE).open("a") as log:
        log.write("{\n")
    assert "is damaged" in search_data(tmp_path)["problem"]
    for text in ('{"search": []}', '{"search": {"goal": 1}}', '{"search": {}}\n{"event": "start"}'):
        (tmp_path / FILE).write_text(f"{text}\n")
        assert str(tmp_path / FILE) in search_data(tmp_path)["problem"]
