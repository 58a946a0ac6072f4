"""The page of a run: what it shows, what it escapes, what it does without."""

import base64
import html
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dvrl.records.layout import RunFiles, write_json
from dvrl.records.metrics import EPISODE_HEADER, Episode, episode_line, metrics_line
from dvrl.reports.beliefs import belief_errors, typical
from dvrl.reports.curves import moving_average
from dvrl.reports.load import load_run
from dvrl.reports.page import build_page

STEPS, HIKES = 75, 3


def hikes(particles: bool) -> dict[str, np.ndarray]:
    """Three walks with known errors: sight is off by 5, the exact filter by 1, the belief by 2."""
    rng = np.random.default_rng(0)
    position = rng.normal(size=(STEPS, HIKES, 2)).cumsum(0) / 4 - 5
    side = np.linspace(-12, 12, 25)
    recorded = {
        "position": position,
        "obs": position + np.array([3.0, 4.0]),
        "exact_mean": position + np.array([1.0, 0.0]),
        "reward": np.array([[-1.0, -3.0, -2.0]] * STEPS),
        "map_side": side,
        "map_reward": -6 + 6 * np.exp(-((side[:, None] / 9) ** 2) - (side[None] / 9) ** 2),
    }
    if particles:
        recorded["estimate"] = position + np.array([0.0, 2.0])
        recorded["particles"] = np.repeat(position[:, :, None], 4, 2)
    return recorded


def make_run(
    root: Path, *, sigma: float | None = 3.0, kind: str = "ParticleConfig", episodes: int = 300
) -> Path:
    """A run written by hand."""
    files = RunFiles(root)
    root.mkdir(parents=True)
    world = {"kind": "GymConfig", "id": "CartPole-v1"}
    if sigma is not None:
        world = {"kind": "MountainHikeConfig", "sigma": sigma}
    write_json(files.config, {"world": world, "encoder": {"kind": kind}, "seed": 0})
    loss = 5.5 if kind == "ParticleConfig" else 0.0
    lines = [metrics_line({"step": 1000 * i, "loss/elbo": loss, "fps": None}) for i in range(9)]
    files.metrics.write_text("".join(lines))
    finished = [Episode(75 * i, -400.0 + i, 75) for i in range(episodes)]
    files.episodes.write_text(EPISODE_HEADER + "".join(map(episode_line, finished)))
    command = ["dvrl", "train", "mountain-hike", "--out", "a b"]
    write_json(files.command, [{"command": command, "versions": {"torch": "2.13"}}])
    return root


def add_hikes(root: Path, particles: bool = True) -> None:
    RunFiles(root).traces.mkdir()
    np.savez_compressed(RunFiles(root).traces / "hikes.npz", **hikes(particles))


def png_size(content: bytes) -> tuple[int, int]:
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", content[16:24])


def cells(page: str) -> dict[str, str]:
    """The table of facts."""
    rows = re.findall(r'<tr><td>(.*?)</td><td class="n">(.*?)</td></tr>', page)
    return {html.unescape(label): html.unescape(value) for label, value in rows}


# The page


def test_a_page_holds_its_pictures_and_needs_no_other_file(tmp_path):
    root = make_run(tmp_path / "run")
    add_hikes(root)
    page, pictures = build_page(root)
    assert page == root / "report.html"
    assert [picture.name for picture in pictures] == ["curve.png", "hike.png"]
    text = page.read_text(encoding="utf-8")
    inside = [
        base64.b64decode(data) for data in re.findall(r"data:image/png;base64,([^\"]+)", text)
    ]
    assert inside == [picture.read_bytes() for picture in pictures]
    assert not re.findall(r'(?:src|href)="(?!data:)', text)
    for picture in inside:
        width, height = png_size(picture)
        assert 800 <= width <= 1600
        assert 500 <= height <= 1400
        assert len(picture) < 500_000


def test_the_facts_are_the_numbers_of_the_files(tmp_path):
    root = make_run(tmp_path / "run")
    add_hikes(root)
    facts = cells(build_page(root)[0].read_text())
    assert facts["episodes finished"] == "300"
    assert facts["mean return, last 200 episodes"] == f"{-400 + (100 + 299) / 2:.1f}"
    assert facts["optimum with an exact belief"] == "-96.7"
    assert facts["exact filter, nats per step"] == "5.120"
    assert facts["model loss, nats per step (last 5 %)"] == "5.500"
    assert facts["distance from the truth: observations"] == "5.00"
    assert facts["distance from the truth: belief"] == "2.00"
    assert facts["distance from the truth: exact filter"] == "1.00"


def test_a_run_without_a_model_shows_no_model(tmp_path):
    root = make_run(tmp_path / "run", kind="GruConfig")
    add_hikes(root, particles=False)
    page, _ = build_page(root)
    text = page.read_text()
    facts = cells(text)
    assert "<h1>RNN" in text
    assert not any("model loss" in label for label in facts)
    assert "distance from the truth: belief" not in facts
    assert facts["distance from the truth: exact filter"] == "1.00"


def test_worlds_without_a_map_have_only_a_curve_and_no_anchors(tmp_path):
    page, pictures = build_page(make_run(tmp_path / "run", sigma=None))
    assert [picture.name for picture in pictures] == ["curve.png"]
    assert not any("optimum" in label for label in cells(page.read_text()))


def test_an_unknown_noise_level_has_no_anchors(tmp_path):
    page, _ = build_page(make_run(tmp_path / "run", sigma=2.0))
    assert not any("optimum" in label for label in cells(page.read_text()))


@pytest.mark.parametrize("episodes", [0, 1])
def test_a_run_that_has_just_begun_has_a_page(tmp_path, episodes):
    root = make_run(tmp_path / "run", episodes=episodes)
    RunFiles(root).metrics.write_text("")
    RunFiles(root).command.unlink()
    page, pictures = build_page(root)
    png_size(pictures[0].read_bytes())
    assert cells(page.read_text())["episodes finished"] == str(episodes)


def test_a_page_can_be_built_again_over_the_old_one(tmp_path):
    root = make_run(tmp_path / "run")
    first = build_page(root)
    RunFiles(root).episodes.write_text(EPISODE_HEADER)
    assert build_page(root) == first
    assert cells(first[0].read_text())["episodes finished"] == "0"


def test_a_directory_that_is_no_run_is_refused_with_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="is not a run: it has no config"):
        build_page(tmp_path)


# Escaping


def test_names_commands_and_settings_are_text_not_markup(tmp_path):
    evil = "<script>alert(1)<"
    root = make_run(tmp_path / evil)
    files = RunFiles(root)
    config = load_run(root).config | {"note": "</pre><img src=x onerror=alert(2)>"}
    write_json(files.config, config)
    start = {"command": ["dvrl", "train", "<b>&"], "versions": {"torch": "<i>"}}
    write_json(files.command, [start])
    text = build_page(root)[0].read_text()
    assert "<script" not in text
    assert "<img src=x" not in text
    assert "<b>" not in text
    assert "<i>" not in text
    assert html.escape(evil) in text
    assert html.escape("</pre><img src=x onerror=alert(2)>") in text
    assert html.escape("'<b>&'") in text


@pytest.mark.parametrize("name", ["a_b^c", "$x$", "$_$"])
def test_any_name_can_stand_above_a_picture(tmp_path, name):
    root = make_run(tmp_path / name)
    add_hikes(root)
    _, pictures = build_page(root)
    assert len([png_size(picture.read_bytes()) for picture in pictures]) == 2


def test_the_command_to_rebuild_can_be_pasted_into_a_shell(tmp_path):
    text = build_page(make_run(tmp_path / "run"))[0].read_text()
    assert html.escape("dvrl train mountain-hike --out 'a b'") in text


# Numbers


def test_a_moving_average_is_the_mean_of_the_last_values_or_of_all_there_are():
    values = np.array([4.0, 2.0, 6.0, 8.0, -5.0])
    assert moving_average(values, 3).tolist() == pytest.approx([4, 3, 4, 16 / 3, 3])
    assert moving_average(values, 1).tolist() == pytest.approx(values.tolist())
    assert moving_average(values, 99).tolist() == pytest.approx([4, 3, 4, 5, 3])
    assert moving_average(np.array([]), 3).tolist() == []


def test_a_moving_average_is_the_mean_of_slices():
    values = np.random.default_rng(0).normal(size=500) - 300
    expected = [values[max(0, i - 19) : i + 1].mean() for i in range(500)]
    assert np.allclose(moving_average(values, 20), expected)


def test_the_typical_hike_has_the_median_return():
    assert typical(hikes(particles=True)) == 2  # returns -75, -225, -150


def test_the_error_of_a_belief_is_its_root_mean_square_distance():
    recorded = hikes(particles=False)
    offset = np.zeros((STEPS, HIKES, 2))
    offset[0, 0] = [3.0, 4.0]
    recorded["obs"] = recorded["position"] + offset
    expected = np.sqrt(25 / (STEPS * HIKES))
    assert belief_errors(recorded) == pytest.approx({"observations": expected, "exact filter": 1.0})


def test_a_series_leaves_out_lines_without_a_value(tmp_path):
    root = make_run(tmp_path / "run")
    lines = [{"step": 1, "x": 0.5}, {"step": 2}, {"step": 3, "x": None}, {"step": 4, "x": 0.0}]
    RunFiles(root).metrics.write_text("".join(map(metrics_line, lines)) + '{"step": 5, "x"')
    steps, values = load_run(root).series("x")
    assert steps.tolist() == [1, 4]
    assert values.tolist() == [0.5, 0.0]
    assert [len(part) for part in load_run(root).series("absent")] == [0, 0]


# What a report does without


@pytest.mark.parametrize("module", ["dvrl.reports.page", "dvrl.records.metrics"])
def test_reports_and_records_know_no_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
