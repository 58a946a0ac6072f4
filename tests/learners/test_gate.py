"""Gates in a stream, with a driver that only writes down what it is told."""

import ctypes

import pytest
import torch

from dvrl.learners import gate
from dvrl.learners.gate import DriverGates, find

STREAM = 42


class Driver:
    """In libcuda's place: every order as (stream, what is in memory, the number waited for)."""

    def __init__(self, verdict: int = 0) -> None:
        self.verdict = verdict
        self.orders: list[tuple[int, int, int]] = []

        def wait(stream: int, address: int, number: int, how: int) -> int:
            assert how == gate.GREATER_OR_EQUAL
            there = ctypes.c_uint32.from_address(address).value
            self.orders.append((stream, there, number))
            return self.verdict

        self.cuStreamWaitValue32_v2 = wait


@pytest.fixture
def driver(monkeypatch):
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *a, pin_memory, **k: zeros(*a, **k))
    driver = Driver()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    return driver


def test_gates_open_one_by_one_in_their_order(driver):
    gates = DriverGates(STREAM)
    for what in ["shut", "shut", "open", "shut", "open", "open", "shut"]:
        getattr(gates, what)()
    assert driver.orders == [(42, 0, 0), (42, 0, 1), (42, 0, 2), (42, 1, 3), (42, 3, 4)]


def test_all_can_be_opened_at_once(driver):
    gates = DriverGates(STREAM)
    for _ in range(5):
        gates.shut()
    gates.open()
    gates.open_all()
    gates.shut()
    assert driver.orders[-1] == (42, 5, 6)


def test_numbers_go_round(driver):
    gates = DriverGates(STREAM)
    gates._shut = 2**32 - 1
    gates.open_all()
    for what in ["shut", "open", "shut"]:
        getattr(gates, what)()
    assert driver.orders[1:] == [(42, 2**32 - 1, 0), (42, 0, 1)]


def test_a_driver_that_refuses_has_none(driver):
    driver.verdict = 801
    assert find(STREAM) is None
    assert driver.orders == [(42, 0, 0)]  # one that would not have waited


def test_there_are_none_where_the_host_waits_for_every_launch(driver, monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    assert find(STREAM) is None
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "0")
    assert find(STREAM) is not None


@pytest.mark.parametrize("error", [OSError, AttributeError])
def test_without_the_library_or_its_function_there_are_none(driver, monkeypatch, error):
    def missing(name):
        raise error

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert find(STREAM) is None
