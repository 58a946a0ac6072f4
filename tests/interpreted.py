"""GPU kernels run by Triton's interpreter on the CPU: every statement, no GPU.

A test starts its own module once more with TRITON_INTERPRET=1, since Triton reads that variable
when kernels are defined; the module's `main` then checks, and prints one line for every case.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def cases_checked(module: str, *args: str, interpreted: bool = True) -> int:
    """How many cases the module's own `main` went through, all of them without complaint."""
    variables = {
        "TRITON_INTERPRET": str(int(interpreted)),
        "PYTHONPATH": str(Path(__file__).parent),
    }
    done = subprocess.run(
        [sys.executable, module, *args],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.count("checked")
