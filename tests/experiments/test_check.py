"""The checks for a GPU, asked where a graph is acted on the CPU."""

from dataclasses import replace

import pytest
import torch

from dvrl import kernels
from dvrl.encoders.config import GruConfig, ParticleConfig
from dvrl.envs.worlds import DeviceWorlds
from dvrl.experiments import check
from dvrl.learners.config import Rates
from dvrl.learners.engine import Eager
from dvrl.learners.graph import Graph
from dvrl.learners.pieces import Pieces
from dvrl.runs import trainer
from recorded_graphs import Acted

pytestmark = pytest.mark.usefixtures("fixed_shapes")

SMALL = {"dvrl": ParticleConfig(3, 8, 4, 6), "rnn": GruConfig(8, 6)}


@pytest.fixture(autouse=True)
def acted_graphs(monkeypatch):
    def build(name, learner, carry):
        if name == "eager":
            return Eager(learner, carry)
        engine = Graph if isinstance(learner.worlds, DeviceWorlds) else Pieces
        return engine(learner, learner.worlds, carry, Acted())

    monkeypatch.setattr(trainer, "build_engine", build)


def small(configs):
    """The first of dvrl and the last of rnn, in small."""
    for name, config in list(configs.items())[::3]:
        learner = replace(config.learner, n_envs=2)
        yield name, replace(config, encoder=SMALL[name.split(",")[0]], learner=learner)


def test_engines_that_agree_are_found_to_agree():
    cpu = torch.device("cpu")
    for name, config in small(check.configs("quick")):
        assert all(f.value == 0 for f in check.eager_and_graph(config, cpu)), name
    for name, config in small(check.host_configs("quick")):
        findings = list(check.from_the_start(config, cpu))
        assert len(findings) == len(check.LOSSES) + 3
        assert all(f.value == 0 for f in findings), name


def test_games_are_compared_in_double_precision():
    pytest.importorskip("ale_py")
    for name, config in check.game_configs().items():
        encoder = replace(SMALL[name.split(",")[0]], batch_norm=True)
        learner = replace(config.learner, n_envs=2)
        config = replace(config, encoder=encoder, learner=learner)
        findings = list(check.in_double(config, torch.device("cpu")))
        assert len(findings) == len(check.LOSSES) + 3
        assert all(f.value == 0 for f in findings), name
        assert {f.bound for f in findings} == {1, check.PRECISE}
    assert torch.get_default_dtype() == torch.float32


def test_kernels_are_compared_with_what_is_done_without_them(monkeypatch):
    pytest.importorskip("ale_py")
    asked = []

    def find(module, x):
        asked.append(kernels._left)

    monkeypatch.setattr(kernels, "find", find)
    for name, config in check.game_configs().items():
        encoder = replace(SMALL[name.split(",")[0]], batch_norm=True)
        config = replace(config, encoder=encoder, learner=replace(config.learner, n_envs=2))
        asked.clear()
        findings = list(check.kernels_and_plain(config, torch.device("cpu")))
        assert len(findings) == len(check.LOSSES) + 2
        assert all(f.value == 0 and f.bound == check.SINGLE for f in findings), name
        half = len(asked) // 2
        assert half > 0
        assert asked == [False] * half + [True] * half
    assert not kernels._left


def test_engines_that_differ_are_found_to_differ(monkeypatch):
    launch = Pieces.launch
    monkeypatch.setattr(
        Pieces, "launch", lambda engine, rates: launch(engine, Rates(rates.lr * 1.01))
    )
    _, config = next(small(check.host_configs("quick")))
    findings = check.from_the_start(config, torch.device("cpu"))
    assert not all(f.holds for f in findings)


def test_windows_in_which_rounding_chose_are_left_out_but_counted():
    def window(loss: float, ancestor: int) -> check._Window:
        one = torch.ones(1)
        return check._Window(dict.fromkeys(check.LOSSES, loss), one, one, torch.tensor([ancestor]))

    same, parted = (window(1.0, 0), window(1.0, 0)), (window(1.0, 0), window(2.0, 1))
    assert all(f.holds for f in check._agree([same, parted]))
    assert not all(f.holds for f in check._agree([parted, same, parted]))
    assert not all(f.holds for f in check._agree([same, (window(1.0, 0), window(1.1, 0))]))


def test_runs_side_by_side_and_runs_continued_are_found_the_same():
    cpu = torch.device("cpu")
    _, (_, config) = small(check.configs("quick"))
    assert [f.value for f in check.continued(config, cpu)] == [0]
    assert [f.value for f in check.side_by_side(config, cpu)] == [0]
    _, (_, config) = small(check.host_configs("quick"))
    assert [f.value for f in check.side_by_side(config, cpu)] == [0]


def test_every_check_has_a_name_of_its_own():
    names = [c.name for c in check.checks(torch.device("cuda"), 100, "paper")]
    assert len(set(names)) == len(names)
    assert {name.split(",")[0] for name in names} == {
        "scan", "engines", "kernels", "tf32", "side by side", "continued", "memory",
    }  # fmt: skip


def test_scans_are_found_to_agree_and_to_differ(monkeypatch):
    assert all(0 < f.value < f.bound for f in check.scans(24, torch.device("cpu")))
    scan = check.scan

    def wrong(gates_i, weight, bias):
        return scan(gates_i, weight, bias + (1e-3 if bias.dtype == torch.float32 else 0))

    monkeypatch.setattr(check, "scan", wrong)
    assert not any(f.holds for f in check.scans(24, torch.device("cpu")))


def test_the_short_hike_is_cut_in_every_window():
    config = next(iter(check.host_configs("paper").values()))
    worlds = config.world.make(2, 0, torch.device("cpu"))
    worlds.reset()
    cuts = []
    for _ in range(50):
        worlds.step(torch.zeros(2, 2))
        cuts.append(worlds.cut)
    assert [i + 1 for i, cut in enumerate(cuts) if cut] == [20, 40]
