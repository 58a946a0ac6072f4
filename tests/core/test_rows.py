"""Tensors side by side in one row."""

import torch

from dvrl.core import rows

SHAPES = [torch.Size(s) for s in ((3, 4), (), (64,), (2, 1, 33), (0,), (1,))]


def test_parts_are_what_was_joined_and_begin_aligned():
    tensors = [torch.randn(shape) for shape in SHAPES]
    row = rows.join(tensors)
    parts = rows.part(row, SHAPES)
    assert len(row) == sum(map(rows.place, SHAPES))
    for tensor, part in zip(tensors, parts, strict=True):
        assert torch.equal(tensor, part)
        assert part.storage_offset() % rows.ALIGNED == 0
        assert part.untyped_storage().data_ptr() == row.untyped_storage().data_ptr()
    assert row.count_nonzero() == sum(t.count_nonzero() for t in tensors), "zeros between"


def test_parts_of_many_rows_and_of_rows_that_go_on():
    tensors = [torch.randn(2, *shape) for shape in SHAPES]
    many = torch.stack([rows.join([t[i] for t in tensors] + [torch.ones(7)]) for i in range(2)])
    for tensor, part in zip(tensors, rows.part(many, SHAPES), strict=True):
        assert torch.equal(tensor, part)
