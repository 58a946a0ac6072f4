"""Returns and lengths of episodes against a loop over steps."""

import numpy as np
import pytest

from dvrl.records.metrics import Episode
from dvrl.runs.trainer import EpisodeMeter


def by_steps(reward: np.ndarray, ended: np.ndarray) -> list[Episode]:
    ret, length, finished = np.zeros(reward.shape[1]), np.zeros(reward.shape[1], int), []
    for t, (r, over) in enumerate(zip(reward, ended, strict=True)):
        ret, length = ret + r, length + 1
        for row in np.flatnonzero(over):
            finished.append(Episode((t + 1) * len(r), float(ret[row]), int(length[row])))
            ret[row] = length[row] = 0
    return finished


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("rate", [0.0, 0.1, 1.0])
def test_windows_bring_the_episodes_of_their_steps(n, rate):
    rng = np.random.default_rng(0)
    reward = rng.normal(size=(60, n)).astype(np.float32)
    ended = rng.random((60, n)) < rate
    meter, found = EpisodeMeter(n), []
    for begin in range(0, 60, 20):
        window = slice(begin, begin + 20)
        found += meter.add(reward[window], ended[window], begin * n)
    assert found == by_steps(reward, ended)
    assert bool(found) == (rate > 0)
