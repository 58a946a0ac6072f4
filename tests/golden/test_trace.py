"""A recorded trace: numbers that may only change together with a changelog entry that says so.

To record anew after a wanted change: `python tests/golden/test_trace.py`.
"""

import json
from pathlib import Path

import pytest
import torch

from dvrl.experiments.presets import preset
from dvrl.runs.trainer import Trainer

TRACE = Path(__file__).with_name("trace.json")
WINDOWS = 2


def trace(agent: str, name: str) -> list[dict[str, float]]:
    """Metrics of the first windows of a preset."""
    torch.set_num_threads(1)
    trainer = Trainer(preset(name, agent), torch.device("cpu"))
    return [trainer.window().metrics for _ in range(WINDOWS)]


def cases() -> list[tuple[str, str]]:
    return [(agent, name) for agent in ("dvrl", "rnn") for name in ("paper", "quick")]


@pytest.mark.parametrize(("agent", "name"), cases())
def test_the_first_windows_of_a_preset_are_as_recorded(agent, name):
    recorded = json.loads(TRACE.read_text())[f"{agent} {name}"]
    for got, want in zip(trace(agent, name), recorded, strict=True):
        # Other processors round differently, and each update amplifies it.
        assert got == pytest.approx(want, rel=2e-2, abs=2e-3)


if __name__ == "__main__":
    traces = {f"{agent} {name}": trace(agent, name) for agent, name in cases()}
    TRACE.write_text(json.dumps(traces, indent=1) + "\n")
