"""The learning rate over a run, in closed form."""

from dataclasses import replace

import pytest

from dvrl.learners.config import A2CConfig

CONFIG = A2CConfig(lr=0.1, n_envs=4, n_grad=25)
WINDOW = 100
"""Environment steps."""


def test_the_learning_rate_stays_as_it_is():
    assert [CONFIG.lr_at(step) for step in (0, WINDOW, 10**9)] == [0.1, 0.1, 0.1]


def test_it_rises_in_a_straight_line_and_never_from_nothing():
    config = replace(CONFIG, warm_up_steps=4 * WINDOW)
    rates = [config.lr_at(i * WINDOW) for i in range(6)]
    assert rates == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1])


def test_it_falls_in_a_straight_line_to_a_tenth():
    config = replace(CONFIG, anneal_steps=4 * WINDOW)
    rates = [config.lr_at(i * WINDOW) for i in range(6)]
    assert rates == pytest.approx([0.1, 0.0775, 0.055, 0.0325, 0.01, 0.01])


def test_it_may_rise_and_fall():
    config = replace(CONFIG, warm_up_steps=2 * WINDOW, anneal_steps=4 * WINDOW)
    rates = [config.lr_at(i * WINDOW) for i in range(3)]
    assert rates == pytest.approx([0.05, 0.0775, 0.055])


@pytest.mark.parametrize("name", ["warm_up_steps", "anneal_steps"])
def test_no_steps_at_all_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} is 0"):
        replace(CONFIG, **{name: 0})
