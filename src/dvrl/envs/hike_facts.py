"""What is known about Mountain Hike without learning (no torch here: reports read this).

Returns over 75 steps, undiscounted. The dynamics are linear and Gaussian, so the Kalman filter is
the exact belief, and a dynamic programme over its mean gives the optimum.
"""

from typing import NamedTuple


class Anchors(NamedTuple):
    """Reference values for one level of observation noise."""

    optimum: float
    """Return of the optimal policy on the exact belief."""
    no_memory: float
    """Return of the optimal policy for known positions when it is fed raw observations."""
    standing_still: float
    nats: float
    """-log p(o_t | history) of the exact filter, mean over the 75 observations of an episode."""


ANCHORS = {
    0.0: Anchors(-69.3, -69.2, -371.0, 0.102),
    1.5: Anchors(-82.1, -105.4, -371.0, 3.823),
    3.0: Anchors(-96.7, -151.6, -371.0, 5.120),
}
