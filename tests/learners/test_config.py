"""The learning rate over a run, in closed form."""

from dataclasses import replace

import pytest

from dvrl.learners.config import A2CConfig

CONFIG = A2CConfig(lr=0.1)


def test_the_learning_rate_stays_as_it_is():
    assert [CONFIG.rates_at(step) for step in (0, 100, 10**9)] == [(0.1, 1.0)] * 3


def test_it_falls_in_a_straight_line_to_a_tenth():
    config = replace(CONFIG, anneal_steps=400)
    rates = [config.rates_at(100 * i).lr for i in range(6)]
    assert rates == pytest.approx([0.1, 0.0775, 0.055, 0.0325, 0.01, 0.01])


def test_the_memorys_share_rises_in_a_straight_line_to_one():
    config = replace(CONFIG, memory_lr=0.2, memory_steps=400)
    shares = [config.rates_at(100 * i).memory for i in range(6)]
    assert shares == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert {config.rates_at(100 * i).lr for i in range(6)} == {0.1}
