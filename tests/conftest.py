"""One thread, and shape checks in every annotated function."""

import pytest
import torch
from jaxtyping import install_import_hook

torch.set_num_threads(1)
install_import_hook("dvrl", "checker.check")


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def fixed_shapes(monkeypatch):
    """No shape depends on chance, as wherever a CUDA graph captures."""
    monkeypatch.setattr("dvrl.models.walk.on_cpu", lambda x: False)
