"""Logs that only grow, except back to a checkpoint."""

import math
from pathlib import Path

import pytest

from dvrl.records.metrics import (
    EPISODE_HEADER,
    AppendLog,
    Episode,
    episode_line,
    metrics_line,
    read_episodes,
    read_metrics,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "log"


def write(path: Path, offset: int, *lines: str, header: str = "") -> int:
    """Open at `offset`, append, make durable; the new offset."""
    log = AppendLog(path, offset, header)
    for line in lines:
        log.write(line)
    log.sync()
    end = log.length
    log.close()
    return end


# Appending


def test_a_log_continues_at_its_offset(path):
    offset = write(path, 0, "one\n", "two\n")
    assert offset == 8
    assert write(path, offset, "three\n") == 14
    assert path.read_text() == "one\ntwo\nthree\n"


def test_what_was_written_behind_the_checkpoint_is_dropped(path):
    offset = write(path, 0, "one\n")
    write(path, offset, "two\n", "thr")  # killed in the middle of a line
    assert write(path, offset, "zwei\n") == 9
    assert path.read_text() == "one\nzwei\n"


def test_the_offset_counts_bytes_not_letters(path):
    offset = write(path, 0, "é = 3\n")
    assert offset == len("é = 3\n".encode()) == path.stat().st_size
    write(path, offset, "more\n")
    assert path.read_text(encoding="utf-8") == "é = 3\nmore\n"


def test_lines_can_be_read_while_the_log_is_open(path):
    log = AppendLog(path, 0)
    log.write("one\n")
    assert path.read_text() == "one\n"
    log.close()


def test_the_header_is_written_once(path):
    offset = write(path, 0, "1,2,3\n", header="a,b,c\n")
    write(path, offset, "4,5,6\n", header="a,b,c\n")
    assert path.read_text() == "a,b,c\n1,2,3\n4,5,6\n"


def test_from_the_beginning_everything_old_is_dropped(path):
    write(path, 0, "old\n", header="head\n")
    write(path, 0, "new\n", header="head\n")
    assert path.read_text() == "head\nnew\n"


def test_a_log_shorter_than_its_checkpoint_says_is_an_error_and_stays_as_it_is(path):
    write(path, 0, "one\n")
    sentence = "has 4 bytes but its checkpoint was taken at 5: the file was changed"
    with pytest.raises(ValueError, match=sentence):
        AppendLog(path, 5)
    assert path.read_text() == "one\n"


def test_a_log_that_vanished_is_an_error_too(path):
    with pytest.raises(ValueError, match="has 0 bytes but its checkpoint was taken at 5"):
        AppendLog(path, 5)


# Metrics


def test_metrics_come_back_as_they_were_written(path):
    lines = [{"step": 100, "loss/total": -0.1 + 0.2, "fps": None}, {"step": 200}]
    write(path, 0, *map(metrics_line, lines))
    assert read_metrics(path) == lines


def test_every_line_of_metrics_is_one_line():
    assert metrics_line({"step": 1, "x": 0.5}).count("\n") == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_a_number_is_not_written(bad):
    with pytest.raises(ValueError, match="not JSON compliant"):
        metrics_line({"step": 1, "loss/total": bad})


@pytest.mark.parametrize("cut", [1, 10, 17])
def test_a_last_line_of_metrics_that_was_torn_is_left_out(path, cut):
    whole, torn = metrics_line({"step": 100, "x": 1.5}), metrics_line({"step": 200, "x": 2.5})
    write(path, 0, whole, torn[:-cut])
    assert read_metrics(path) == [{"step": 100, "x": 1.5}]


def test_an_empty_log_has_no_metrics(path):
    write(path, 0)
    assert read_metrics(path) == []


# Episodes


def test_episodes_come_back_to_the_last_digit(path):
    episodes = [Episode(75, -371.1 / 3, 75), Episode(10**12, 1e-300, 1), Episode(80, -5.0, 5)]
    write(path, 0, *map(episode_line, episodes), header=EPISODE_HEADER)
    assert read_episodes(path) == episodes


@pytest.mark.parametrize("cut", [1, 2, 5, 9])
def test_a_last_episode_that_was_torn_is_left_out(path, cut):
    """`80,-5.25,75` cut to `80,-5.25,7` would be a wrong number, not an error."""
    whole, torn = Episode(75, -3.5, 75), episode_line(Episode(80, -5.25, 75))
    write(path, 0, episode_line(whole), torn[:-cut], header=EPISODE_HEADER)
    assert read_episodes(path) == [whole]


@pytest.mark.parametrize("begun", ["", "step,ret", EPISODE_HEADER])
def test_a_log_with_no_more_than_a_header_has_no_episodes(path, begun):
    write(path, 0, begun)
    assert read_episodes(path) == []


def test_a_torn_line_is_gone_after_the_log_is_opened_at_its_checkpoint(path):
    offset = write(path, 0, episode_line(Episode(75, -3.5, 75)), header=EPISODE_HEADER)
    write(path, offset, "150,-4")
    write(path, offset, episode_line(Episode(150, -4.5, 75)), header=EPISODE_HEADER)
    assert read_episodes(path) == [Episode(75, -3.5, 75), Episode(150, -4.5, 75)]
