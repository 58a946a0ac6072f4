"""What stands around a run."""

import os
import signal
import subprocess
import sys

import pytest

from dvrl.runs.guard import stop_signals

TWICE = """
import resource
import torch
from dvrl.runs.guard import numerics

def page_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    taken = [torch.ones(i * 250_000) for i in range(1, 17)]  # 136 MB in all, freed at once
    del taken
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with numerics(1):
    print(page_faults(), page_faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_freed_memory_is_not_asked_for_again_page_by_page():
    done = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, check=True)
    first, again = map(int, done.stdout.split())
    assert again < first / 4


@pytest.mark.parametrize("ignored", [False, True])
def test_a_hangup_stops_a_run_unless_whoever_started_it_had_it_ignored(ignored):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        with stop_signals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert (stop.signal_number is None) == ignored
        assert signal.getsignal(signal.SIGHUP) == (signal.SIG_IGN if ignored else signal.SIG_DFL)
    finally:
        signal.signal(signal.SIGHUP, before)
