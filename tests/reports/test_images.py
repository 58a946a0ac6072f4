"""Pictures of what an agent sees and expects: every pixel where it belongs."""

import base64
import html
import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_page import cells, make_run

from dvrl.records.layout import RunFiles, write_json
from dvrl.records.metrics import EPISODE_HEADER, Episode, episode_line, metrics_line
from dvrl.reports.curves import learning_curve
from dvrl.reports.film import GAP, HEAD, MILLISECONDS, SCALE, film
from dvrl.reports.images import BLANK, png
from dvrl.reports.load import load_run
from dvrl.reports.page import build_page
from dvrl.reports.predictions import (
    MOST,
    draw_predictions,
    particles_figure,
    predictions_figure,
    share,
    two_moments,
)

SIDE = 84
DT = (0, 1, 2, 3, 10, 30)


def screens(*shape: int) -> np.ndarray:
    """Noise, with nothing in common."""
    return np.random.default_rng(sum(shape)).integers(0, 256, (*shape, SIDE, SIDE), np.uint8)


def episode(steps: int = 5, belief: bool = True) -> dict[str, np.ndarray]:
    seen = {
        "screen": screens(steps),
        "shown": screens(steps),
        "score": np.full(steps, 2.0),
        "over": np.zeros(steps, bool),
        "checkpoint_step": np.array(4000),
    }
    seen["shown"][::2] = 0
    return seen | ({"belief": screens(steps + 1)[:steps]} if belief else {})


def predictions(rows: int = 3, particles: int = 4) -> dict[str, np.ndarray]:
    """Every other moment is blank; the last particle is the likeliest."""
    observation, weight = screens(rows), np.arange(1.0, particles + 1)
    blank = np.arange(rows) % 2 == 1
    observation[blank] = 0
    return {
        "t": 10 * np.arange(rows),
        "dt": np.array(DT),
        "observation": observation,
        "screen": screens(rows),
        "blank": blank,
        "mean": screens(rows, len(DT)),
        "own": screens(rows, 2, particles),
        "weight": np.tile(weight / weight.sum(), (rows, 1)),
        "checkpoint_step": np.array(4000),
    }


def make_atari(
    root: Path, *, kind: str = "ParticleConfig", games: int = 30, game: str = "Pong"
) -> Path:
    """A run of Atari written by hand; its gap falls from 90 to 10."""
    make_run(root, kind=kind)
    files = RunFiles(root)
    world = {"kind": "AtariConfig", "game": game, "variant": "deterministic", "flicker": 0.5}
    write_json(files.config, {"world": world, "encoder": {"kind": kind}, "seed": 0})
    has_model = kind == "ParticleConfig"
    lines = [{"step": 1000 * i, "loss/elbo": 2000.0 * has_model} for i in range(9)]
    for i, line in enumerate(lines):
        line |= {"belief/gap": 90.0 - 10 * i} if has_model else {}
    files.metrics.write_text("".join(map(metrics_line, lines)))
    finished = [Episode(250 * i, -21.0 + i % 2, 900) for i in range(games)]
    files.episodes.write_text(EPISODE_HEADER + "".join(map(episode_line, finished)))
    return root


def save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    path.parent.mkdir(exist_ok=True)
    np.savez(path, **arrays)


def frames(gif: bytes) -> list[np.ndarray]:
    picture = Image.open(io.BytesIO(gif))
    found = []
    for nth in range(picture.n_frames):
        picture.seek(nth)
        found.append(np.asarray(picture.convert("L")))
    return found


def drawn(figure) -> list[np.ndarray]:
    """The screens on a sheet, in the order in which they were placed."""
    return [np.asarray(axis.images[0].get_array()) for axis in figure.axes]


def words(figure) -> list[str]:
    return [text.get_text() for text in figure.texts]


# Films


@pytest.mark.parametrize("belief", [True, False])
def test_a_film_shows_the_screens_of_every_step_side_by_side(belief):
    seen = episode(belief=belief)
    panels = [seen[name] for name in ("screen", "shown", "belief") if name in seen]
    shown = frames(film(seen))
    assert len(shown) == 5
    side = SCALE * SIDE
    for t, picture in enumerate(shown):
        assert picture.shape == (HEAD + side + GAP, GAP + len(panels) * (side + GAP))
        for place, panel in enumerate(panels):
            x = GAP + place * (side + GAP)
            part = picture[HEAD : HEAD + side, x : x + side]
            large = panel[t].repeat(SCALE, 0).repeat(SCALE, 1)
            assert np.abs(part.astype(int) - large).max() <= 5  # in 32 greys
            assert not part[large == 0].any()


def test_a_film_runs_for_ever_at_about_15_frames_a_second():
    picture = Image.open(io.BytesIO(film(episode())))
    assert picture.info["loop"] == 0
    assert picture.info["duration"] == MILLISECONDS
    assert 14 <= 1000 / MILLISECONDS <= 16


def test_a_film_of_one_frame_and_the_words_above_it():
    (picture,) = frames(film(episode(steps=1)))
    head = picture[:HEAD]
    thirds = np.array_split(head, 3, axis=1)
    assert all(third.max() > 180 for third in thirds)  # something is written in each


# Figures


def test_predictions_are_drawn_in_rows_of_what_was_seen_believed_and_expected():
    told = predictions()
    figure = predictions_figure("run", told)
    expected = [
        screen
        for seen, mean in zip(told["observation"], told["mean"], strict=True)
        for screen in (seen, *mean)
    ]
    assert all(map(np.array_equal, drawn(figure), expected))
    assert len(figure.axes) == 3 * 7
    heads = ["$o_t$", *(f"dt {dt}" for dt in DT)]
    assert words(figure)[1:8] == heads
    assert [w for w in words(figure) if w.startswith("t = ")] == ["t = 0", "t = 10", "t = 20"]


def test_all_screens_share_one_scale_of_grey():
    for axis in predictions_figure("run", predictions()).axes:
        (image,) = axis.images
        assert image.get_clim() == (0, 255)
        assert image.get_cmap().name == "gray"
        assert image.get_interpolation() == "none"


@pytest.mark.parametrize("figure", [predictions_figure, particles_figure])
def test_blank_observations_and_no_others_are_framed(figure):
    told = predictions()
    for axis in figure("run", told).axes:
        framed = axis.spines["left"].get_visible()
        assert framed == (not axis.images[0].get_array().any())


@pytest.mark.parametrize("figure", [predictions_figure, particles_figure])
def test_each_pixel_of_a_screen_is_two_by_two_in_the_picture(figure):
    sheet = figure("run", predictions())
    picture = np.asarray(Image.open(io.BytesIO(png(sheet))).convert("RGB")).astype(int)
    height, width, _ = picture.shape
    for axis in sheet.axes:
        box = axis.get_position()
        x, y = round(box.x0 * width), round((1 - box.y1) * height)
        part = picture[y : y + 2 * SIDE, x : x + 2 * SIDE]
        large = np.asarray(axis.images[0].get_array()).repeat(2, 0).repeat(2, 1)
        inner = slice(2, -2)  # a frame lies on the edge
        assert np.abs(part - large[..., None])[inner, inner].max() <= 1


def test_particles_are_drawn_likeliest_first_under_their_weights():
    told = predictions(particles=4)
    figure = particles_figure("run", told)
    shown, blank = 2, 1  # the middle one of 0 and 2 counts upwards
    expected = []
    for row in (shown, blank):
        expected += [told["observation"][row], *told["own"][row, 1, ::-1]]
    assert all(map(np.array_equal, drawn(figure), expected))
    weights = ["0.400", "0.300", "0.200", "0.100"]
    assert [w for w in words(figure) if w.startswith("0.")] == 2 * weights
    assert "each of 4 particles" in words(figure)[0]


@pytest.mark.parametrize(("particles", "screens_drawn"), [(1, 1), (15, 15), (MOST + 8, MOST)])
def test_any_number_of_particles_can_be_drawn(particles, screens_drawn):
    figure = particles_figure("run", predictions(particles=particles))
    assert len(figure.axes) == 2 * (1 + screens_drawn)
    for axis in figure.axes:
        box = axis.get_position()
        assert min(box.x0, box.y0, 1 - box.x1, 1 - box.y1) > 0


def test_where_nothing_was_blank_one_moment_is_drawn():
    assert two_moments(np.zeros(3, bool)) == [1]
    assert two_moments(np.array([False, True, True, False, True])) == [3, 2]


def test_a_weight_too_small_to_write_is_said_to_be_small():
    assert [share(w) for w in (1.0, 0.25, 0.001, 0.0004, 0.0)] == [
        *("1.000", "0.250", "0.001", "< 0.001", "< 0.001")
    ]


def test_a_frame_can_be_told_from_black_and_from_white():
    channels = [int(BLANK[i : i + 2], 16) for i in (1, 3, 5)]
    assert max(channels) > 200
    assert min(channels) < 60


# The page


def test_a_page_of_atari_holds_curve_film_and_predictions(tmp_path):
    root = make_atari(tmp_path / "run")
    save(RunFiles(root).trace("episode"), episode())
    save(RunFiles(root).trace("predictions"), predictions())
    page, pictures = build_page(root)
    assert [picture.name for picture in pictures] == [
        *("curve.png", "episode.gif", "predictions.png", "particles.png")
    ]
    text = page.read_text()
    inside = re.findall(r'src="data:image/(png|gif);base64,([^"]+)"', text)
    assert [kind for kind, _ in inside] == ["png", "gif", "png", "png"]
    assert [base64.b64decode(data) for _, data in inside] == [p.read_bytes() for p in pictures]
    assert not re.findall(r'(?:src|href)="(?!data:)', text)
    assert "The first 5 decisions of a game, return so far 10" in text
    assert "after 4,000 decisions" in text


def test_the_film_on_a_page_is_short_and_says_of_what_it_is_the_beginning(tmp_path, monkeypatch):
    monkeypatch.setattr("dvrl.reports.page.FRAMES", 3)
    root, seen = make_atari(tmp_path / "run"), episode()
    seen["over"][-1] = True
    save(RunFiles(root).trace("episode"), seen)
    page, (_, gif) = build_page(root)
    assert len(frames(gif.read_bytes())) == 3
    assert "The first 3 decisions of a game, return so far 6" in page.read_text()
    monkeypatch.setattr("dvrl.reports.page.FRAMES", 300)
    assert "All 5 decisions of a game, return 10" in build_page(root)[0].read_text()


def test_the_facts_of_atari_are_the_numbers_of_the_files(tmp_path):
    facts = cells(build_page(make_atari(tmp_path / "run"))[0].read_text())
    assert facts["game"] == "Pong, deterministic"
    assert facts["flicker probability"] == "0.5"
    assert facts["decisions"] == "8,000"
    assert facts["games finished"] == "30"
    assert facts["mean raw return, last 30 games"] == "-20.5"
    assert facts["model gap, nats per frame (last 5 %)"] == "10.00"
    assert not any("episode" in label or "optimum" in label for label in facts)


def test_of_many_games_the_last_ones_count_and_the_page_says_how_many(tmp_path):
    facts = cells(build_page(make_atari(tmp_path / "run", games=350))[0].read_text())
    assert facts["games finished"] == "350"
    assert "mean raw return, last 200 games" in facts


def test_the_model_is_drawn_by_its_gap_on_a_logarithmic_axis(tmp_path):
    returns, model = learning_curve(load_run(make_atari(tmp_path / "run"))).axes
    assert returns.get_ylabel() == "raw return of a game"
    assert model.get_ylabel().startswith("model gap, nats per frame")
    assert model.get_yscale() == "log"
    assert model.lines[0].get_ydata().tolist() == [90.0 - 10 * i for i in range(9)]
    assert model.get_xlabel() == "decisions"


def test_beside_the_gap_stands_what_a_still_picture_would_cost(tmp_path):
    root = make_atari(tmp_path / "run")
    save(RunFiles(root).trace("episode"), episode() | {"still_gap": np.array(2.75)})
    label = "the same of a still picture of the episode below"
    assert cells(build_page(root)[0].read_text())[label] == "2.75"
    lines = learning_curve(load_run(root)).axes[1].lines
    assert [list(line.get_ydata()) for line in lines[1:]] == [[2.75, 2.75]]


def test_a_gap_that_falls_below_zero_is_drawn_all_the_same(tmp_path):
    root = make_atari(tmp_path / "run")
    lines = [{"step": 1000 * i, "loss/elbo": 5.0, "belief/gap": 3.0 - i} for i in range(1, 6)]
    RunFiles(root).metrics.write_text("".join(map(metrics_line, lines)))
    assert learning_curve(load_run(root)).axes[1].get_yscale() == "linear"


def test_an_agent_without_a_model_has_a_film_without_belief_and_no_gap(tmp_path):
    root = make_atari(tmp_path / "run", kind="GruConfig")
    save(RunFiles(root).trace("episode"), episode(belief=False))
    page, pictures = build_page(root)
    assert [picture.name for picture in pictures] == ["curve.png", "episode.gif"]
    assert not any("model" in label for label in cells(page.read_text()))
    assert len(learning_curve(load_run(root)).axes) == 1
    assert "particles" not in page.read_text()


@pytest.mark.parametrize("games", [0, 1, 2])
def test_a_run_without_finished_games_has_a_page(tmp_path, games):
    root = make_atari(tmp_path / "run", games=games)
    build_page(root)
    RunFiles(root).metrics.write_text("")
    page, _ = build_page(root)
    assert cells(page.read_text())["games finished"] == str(games)


def test_names_of_games_and_runs_are_text_not_markup(tmp_path):
    evil = "<b>$x$_{"
    root = make_atari(tmp_path / evil, game="<i>Pong")
    save(RunFiles(root).trace("episode"), episode())
    save(RunFiles(root).trace("predictions"), predictions())
    text = build_page(root)[0].read_text()
    assert "<b>" not in text
    assert "<i>" not in text
    assert html.escape("<i>Pong, deterministic") in text


def test_pictures_of_predictions_need_no_run_beside_them(tmp_path):
    save(RunFiles(tmp_path).trace("episode"), episode())
    save(RunFiles(tmp_path).trace("predictions"), predictions())
    paths = draw_predictions(tmp_path)
    assert [path.name for path in paths] == ["predictions.png", "particles.png", "belief.gif"]
    assert all(path.parent == RunFiles(tmp_path).plots and path.exists() for path in paths)
