"""Whose error it is: what a record raises never ends a run, what somebody or the machine does may."""

from __future__ import annotations

import numpy as np
import pytest

from dpml import machine
from dpml.data import PrivateData
from dpml.data.cells import plain_label
from dpml.mechanisms import FixedNoise


class Panic(BaseException):
    """As libraries written in Rust raise it."""


class Items:
    """Five items; the third raises."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        if index == 2:
            raise self.error
        return np.full(3, index + 1.0), index % 2


def loaded(error: BaseException) -> np.ndarray:
    data = PrivateData.from_dataset(Items(error), n_declared=5, classes=[0, 1], feature_shape=3, lazy=False)
    return np.asarray(data.load(FixedNoise(0)).X)


@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(3), Panic(), RecursionError(), MemoryError(), RuntimeError("allocate memory")]
)
def test_an_error_of_a_record_does_not_end_the_run(error: BaseException) -> None:
    whole = loaded(error)
    assert (whole[2] == 0.0).all() or len(whole) == 4
    assert np.isfinite(whole).all()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), machine.Stopped(143), GeneratorExit()])
def test_an_error_of_nobodys_record_ends_it(error: BaseException) -> None:
    with pytest.raises(type(error)):
        loaded(error)


def test_a_lack_of_memory_is_the_machines_only_if_it_stays_when_the_record_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The frames that held the memory are emptied before the machine is asked."""

    class Held:
        alive = 0

        def __init__(self) -> None:
            Held.alive += 1

        def __del__(self) -> None:
            Held.alive -= 1

    def greedy() -> None:
        kept = [Held() for _ in range(3)]
        raise MemoryError(len(kept))

    monkeypatch.setattr(machine, "is_short_of_memory", lambda: Held.alive > 0)
    try:
        greedy()
    except MemoryError as error:
        assert machine.is_short_of_memory()
        machine.refuse_unless_a_records(error)  # raises nothing
    monkeypatch.setattr(machine, "is_short_of_memory", lambda: True)
    with pytest.raises(MemoryError):
        machine.refuse_unless_a_records(MemoryError())


def test_a_label_that_panics_is_itself() -> None:
    class Label:
        def item(self) -> int:
            raise Panic

    label = Label()
    assert plain_label(label) is label
