"""What carries a belief on may learn at a rate of its own."""

from dataclasses import replace

import pytest
import torch

from dvrl.experiments.presets import AGENTS, preset
from dvrl.runs.trainer import Trainer

CELLS = {"dvrl": "encoder.model._transition.", "rnn": "encoder.cell."}


@pytest.mark.parametrize("agent", AGENTS)
def test_with_no_rate_the_recurrent_cell_alone_stays_as_it_is(agent):
    config = preset("quick", agent)
    config = replace(config, learner=replace(config.learner, memory_lr=0.0))
    trainer = Trainer(config, torch.device("cpu"))
    before = {name: p.clone() for name, p in trainer.agent.named_parameters()}
    trainer.window()
    after = dict(trainer.agent.named_parameters())
    stayed = {name for name, p in before.items() if torch.equal(p, after[name])}
    assert stayed == {name for name in before if name.startswith(CELLS[agent])}
