"""Updates divided among the processes of a host, played by threads: the bits of whole ones."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from tests.support.meetings import close, opened
from trainer.engine.graph.exchange.rendezvous import PeerLostError
from trainer.engine.graph.step import divided_update
from trainer.engine.graph.step.divided_update import DividedUpdate
from trainer.optimizers.adafactor import adafactor
from trainer.optimizers.adagrad import adagrad
from trainer.optimizers.adam import adam
from trainer.optimizers.adamw import adamw
from trainer.optimizers.lamb import lamb
from trainer.optimizers.lars import lars
from trainer.optimizers.lion import lion
from trainer.optimizers.muon import muon
from trainer.optimizers.nadam import nadam
from trainer.optimizers.rmsprop import rmsprop
from trainer.optimizers.sgd import sgd

STEPS = 4
SHAPES = [(3, 3, 5, 16), (16,), (160, 24), (24,), (), (7, 5)]
OPTIMIZERS = {
    "adafactor": lambda: adafactor(0.01),
    "adagrad": lambda: adagrad(0.1, weight_decay=0.1),
    "adam": lambda: adam(0.01),
    "adamw": lambda: adamw(0.01),
    "lamb": lambda: lamb(0.01),
    "lars": lambda: lars(0.1),
    "lion": lambda: lion(0.01, weight_decay=0.1),
    "momentum": lambda: sgd(0.1, weight_decay=0.1),
    "muon": lambda: muon(0.01),
    "nadam": lambda: nadam(0.01, weight_decay=0.1),
    "rmsprop": lambda: rmsprop(0.01, momentum=0.5),
    "sgd": lambda: sgd(0.1, momentum=0.0),
}


class Process:
    """One of several processes that train the same weights."""

    def __init__(self, make, rendezvous=None, shapes=SHAPES):
        random = np.random.RandomState(1)
        self.weights = [
            tf.Variable(random.standard_normal(shape), dtype=tf.float32) for shape in shapes
        ]
        self.optimizer = make()
        self.optimizer._create_all_weights(self.weights)
        self.divided = rendezvous and DividedUpdate(rendezvous, if_faster=False)
        self.function = tf.function(self._steps, autograph=False)

    def _steps(self, first, last):
        def step(number):
            draw = tf.random.stateless_normal
            gradients = [draw(x.shape, (number, i)) for i, x in enumerate(self.weights)]
            weights = self.weights
            if self.divided:
                gradients, weights = self.divided.apply(self.optimizer, gradients, weights)
            self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
            return number + 1

        return tf.while_loop(lambda number: number < last, step, [first])

    def run(self, first=0, last=STEPS):
        self.function(tf.constant(first), tf.constant(last))

    def slots(self):
        return [x for x in self.optimizer.variables() if x is not self.optimizer.iterations]

    def values(self):
        return [x.numpy() for x in (*self.weights, *self.optimizer.variables())]

    def num_moved(self):
        return [update._state.num_moved for update in self.divided._traced.values()]


@pytest.fixture
def processes(request):
    """Return what makes two processes, and the threads that run them.

    Not more: while one waits for another, it has a thread of TensorFlow's.
    """
    with opened(2, request.node.name) as members, ThreadPoolExecutor(2) as pool:
        yield lambda make, **options: [Process(make, x, **options) for x in members], pool


def together(pool, members, *steps):
    list(pool.map(lambda member: member.run(*steps), members))


def assert_equal(members, whole):
    for member in members:
        for own, wanted in zip(member.values(), whole.values(), strict=True):
            assert own.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parts_have_the_bits_of_the_whole(processes, name):
    create, pool = processes
    members, whole = create(OPTIMIZERS[name]), Process(OPTIMIZERS[name])
    together(pool, members)
    whole.run()
    assert_equal(members, whole)


def test_fused_kernels_update_in_shared_memory(processes):
    """What TensorFlow moves elsewhere is copied back: right, but without the gain."""
    create, pool = processes
    members = create(OPTIMIZERS["adam"], shapes=[(512, 96)])
    together(pool, members)
    assert [member.num_moved() for member in members] == [[0], [0]]


def test_what_is_assigned_between_steps_counts(processes):
    create, pool = processes
    make = OPTIMIZERS["momentum"]
    members, whole = create(make), Process(make)
    whole.run(0, 2)
    together(pool, members, 0, 2)
    for process in (*members, whole):
        for variable in (*process.weights, *process.slots()):
            variable.assign(variable * 0.5)
    together(pool, members, 2, 4)
    whole.run(2, 4)
    assert_equal(members, whole)


def test_weights_that_were_read_do_not_change(processes):
    create, pool = processes
    members = create(OPTIMIZERS["adam"])
    together(pool, members, 0, 1)
    held = [weight.read_value() for weight in members[1].weights]
    before = [value.numpy().copy() for value in held]
    together(pool, members, 1, 4)
    for value, wanted in zip(held, before, strict=True):
        assert value.numpy().tobytes() == wanted.tobytes()
    assert not np.array_equal(members[1].weights[0].numpy(), before[0])


def test_lost_process_leaves_what_the_others_hold(processes):
    """Nobody changes slots before all have come: whoever has not begun an update holds a whole."""
    create, pool = processes
    members = create(OPTIMIZERS["adam"])
    together(pool, members, 0, 1)
    before = held(members[0])
    close(members[1].divided._rendezvous)
    with pytest.raises(tf.errors.OpError, match=PeerLostError.__name__):
        members[0].run(1, 2)
    assert held(members[0]) == before


def held(member):
    return [x.numpy().tobytes() for x in (*member.weights, *member.slots())]


@pytest.mark.parametrize(
    ("count", "min_bytes", "divides"), [(3, 0, True), (2, 0, False), (3, 100_000, False)]
)
def test_update_is_left_to_the_optimizer_where_to_divide_it_does_not_pay(
    monkeypatch, count, min_bytes, divides
):
    monkeypatch.setattr(divided_update, "_MIN_BYTES", min_bytes)
    monkeypatch.setattr(divided_update, "_MIN_MEAN_BYTES", 0)
    rendezvous = type("Members", (), {"count": count, "rank": 0})
    process = Process(OPTIMIZERS["adam"])
    process.divided = DividedUpdate(rendezvous, if_faster=True)
    process.function.get_concrete_function(tf.constant(0), tf.constant(1))
    assert process.divided.divides == divides
