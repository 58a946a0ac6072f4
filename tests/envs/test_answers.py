"""An answer is one row of bytes; its parts are views, each of its own type."""

import numpy as np
import torch

from dvrl.envs.answers import ALIGNED, Layout

PARTS = (
    (torch.uint8, (2, 3)),
    (torch.float32, (2,)),
    (torch.bool, (2,)),
)


def made() -> Layout:
    return Layout(PARTS, torch.device("cpu"))


def test_what_is_written_to_the_parts_is_read_from_the_answer():
    layout = made()
    answer, parts = layout.form()
    values = (np.arange(6).reshape(2, 3), [0.5, -1.0], [True, False])
    for part, value in zip(parts, values, strict=True):
        part[:] = value
    sent = answer.clone()  # as to another device
    pixels, reward, ended = layout.read(sent)
    assert pixels.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert reward.tolist() == [0.5, -1.0]
    assert ended.tolist() == [True, False]
    assert all(part.data_ptr() % ALIGNED == sent.data_ptr() % ALIGNED for part in (reward, ended))


def test_on_the_host_every_answer_has_memory_of_its_own():
    layout = made()
    forms = [layout.form() for _ in range(3)]
    assert len({form.answer.data_ptr() for form in forms}) == 3


def test_what_is_sent_on_is_always_written_to_the_same_place(monkeypatch):
    layout = made()
    size = len(layout.blank())
    layout.goes_on = True
    monkeypatch.setattr(layout, "blank", lambda: torch.empty(size, dtype=torch.uint8))
    one, other = layout.form(), layout.form()
    assert one.answer.data_ptr() == other.answer.data_ptr()
    one.parts[1][:] = 7.0
    assert layout.read(other.answer)[1].tolist() == [7.0, 7.0]
