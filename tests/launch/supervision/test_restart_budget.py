"""The budget of restarts: spent by each, renewed by a newer checkpoint."""

from trainer.launch.supervision.restart_budget import RestartBudget


def test_budget_is_renewed_by_a_newer_checkpoint(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    budget = RestartBudget(tmp_path, 2)
    assert [budget.spend() for _ in range(3)] == [True, True, False]
    (tmp_path / "checkpoints" / "ckpt-5.json").touch()
    assert [budget.spend() for _ in range(3)] == [True, True, False]
    assert budget.spent == 3


def test_checkpoint_that_was_there_renews_nothing(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "ckpt-5.json").touch()
    budget = RestartBudget(tmp_path, 1)
    assert [budget.spend() for _ in range(2)] == [True, False]
