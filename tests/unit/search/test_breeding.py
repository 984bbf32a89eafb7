"""Candidates that are made of others stay within their sketch, and valid."""

import numpy as np

from retune.core.target import GENERIC_CPU
from retune.ir.stmt import from_dag
from retune.search.tuners.breeding import crossover, mutate
from retune.targets.cpu.space import cpu_space
from tests.support.dags import conv2d

PROGRAM = from_dag(conv2d(1, 9, 9, 6, 24))


def test_mutation_changes_at_most_one_decision_and_stays_valid():
    space, rng = cpu_space(PROGRAM, GENERIC_CPU), np.random.default_rng(1)
    before = space.sample(60, rng)
    after = mutate(space, before, rng)
    assert space.valid(after).all()
    assert ((before.rows != after.rows).sum(axis=1) <= 1).all()
    assert (before.rows != after.rows).any()


def test_crossover_takes_each_decision_from_a_parent():
    space, rng = cpu_space(PROGRAM, GENERIC_CPU), np.random.default_rng(2)
    a, b = space.sample(60, rng), space.sample(60, rng)
    child = crossover(space, a, b, rng)
    assert space.valid(child).all()
    assert np.array_equal(child.sketch, a.sketch)
    assert ((child.rows == a.rows) | (child.rows == b.rows)).all()
    other = a.sketch != b.sketch
    assert np.array_equal(child.rows[other], a.rows[other])
