"""Which workers a run has while some are lost."""

import pytest

from tests.support.terminal import Clock
from trainer.cli.compose import compose
from trainer.cluster.messages import Availability
from trainer.launch.supervision import membership
from trainer.launch.supervision.membership import Membership
from trainer.strategies.multi_worker import MultiWorker
from trainer.strategies.one_device import OneDevice


@pytest.fixture
def clock():
    manual = Clock()
    manual.now = 0.0
    return manual


@pytest.fixture
def four(clock):
    """Four workers, of which two are enough."""
    return Membership([4, 3, 2], 10.0, clock)


def lose(workers, name):
    return workers.update(Availability(name, is_back=False))


def bring_back(workers, name):
    return workers.update(Availability(name, is_back=True))


def test_attempt_has_the_workers_that_can_be_had(four):
    assert four.begin() == 4
    assert not lose(four, "worker-1")
    assert (four.begin(), four.missing, four.is_enough) == (3, "worker-1", True)
    assert bring_back(four, "worker-1")
    assert (four.begin(), four.missing) == (4, "")


def test_processes_are_numbered_without_gaps_but_missing_ones_by_their_place(four):
    lose(four, "worker-1")
    four.begin()
    lose(four, "worker-1")  # of three: it ran in place 2
    assert four.missing == "worker-1, worker-2"
    assert four.begin() == 2
    assert not bring_back(four, "worker-3")  # it was never lost
    assert bring_back(four, "worker-2")
    assert four.missing == "worker-1"


def test_with_fewer_workers_than_the_least_the_run_does_not_go_on(four):
    for name in ("worker-3", "worker-2", "worker-0"):
        lose(four, name)
    assert not four.is_enough
    assert four.missing == "worker-0, worker-2, worker-3"


def test_number_of_workers_divides_the_batch(clock):
    workers = Membership([4, 2, 1], 0.0, clock)
    assert workers.begin() == 4
    lose(workers, "worker-0")
    assert workers.begin() == 2
    assert lose(workers, "worker-1") is False
    assert workers.begin() == 2
    assert bring_back(workers, "worker-0") is False  # three of them would not divide it
    assert bring_back(workers, "worker-2")
    assert workers.begin() == 4


def test_worker_that_keeps_failing_at_the_start_cannot_be_had(four, clock):
    four.record_start_failure("worker-1")
    clock.now = 9
    four.record_start_failure("worker-1")
    assert four.missing == ""
    four.record_start()
    clock.now = 30
    four.record_start_failure("worker-1")
    four.record_start_failure("worker-2")
    clock.now = 41
    four.record_start_failure("worker-1")
    assert four.missing == ""  # not the same one in between
    clock.now = 52
    four.record_start_failure("worker-1")
    assert four.missing == "worker-1"


def test_membership_follows_from_the_configuration():
    experiment = compose(["batch.global_size=12"])
    elastic = MultiWorker(workers=4, min_workers=2, rejoin_secs=5.0)
    assert membership.of(MultiWorker(workers=4), experiment) is None
    assert membership.of(elastic, compose(["launch=ray"])) is None
    workers = membership.of(elastic, experiment)
    assert (workers.full, workers.rejoin_secs, workers.begin()) == (4, 5.0, 4)
    lose(workers, "worker-3")
    assert workers.begin() == 3


def test_sizes_are_those_that_divide_the_batch():
    batch = compose(["batch.global_size=12"]).batch
    assert membership.sizes(MultiWorker(workers=6), batch) == [6]
    assert membership.sizes(MultiWorker(workers=6, min_workers=2), batch) == [6, 4, 3, 2]
    assert membership.sizes(OneDevice(), batch) == [1]


def test_evaluator_that_fails_at_the_start_takes_no_place(four, clock):
    for now in (0, 10, 20):
        clock.now = now
        four.record_start_failure("evaluator-0")
    assert (four.missing, four.size) == ("", 4)
