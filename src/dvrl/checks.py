"""Checks that settings share; each failure is one sentence (no torch here)."""

import math
from numbers import Real


def at_least(config: object, least: int, *names: str) -> None:
    for name in names:
        if getattr(config, name) < least:
            raise ValueError(f"{name} is {getattr(config, name)}; it must be at least {least}")


def positive(config: object, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if not (_is_number(value) and value > 0):
            raise ValueError(f"{name} is {value}; it must be a positive number")


def not_negative(config: object, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if not (_is_number(value) and value >= 0):
            raise ValueError(f"{name} is {value}; it must be a number not below 0")


def probability(config: object, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if not (_is_number(value) and 0 <= value <= 1):
            raise ValueError(f"{name} is {value}; it must lie between 0 and 1")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and math.isfinite(value)
