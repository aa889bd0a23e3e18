"""Limits that seeded mutants moved without any other test noticing (``experiments/mutants.py``)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dpml import accounting as acc
from dpml.accounting import exact, ledger
from dpml.errors import ConfigError, LedgerError
from dpml.mechanisms.lattice import Grid

# -- mechanisms/lattice.py --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "most"), [("sums", 2**20), ("dimension", 2**62)])
def test_the_grids_largest_numbers(name: str, most: int) -> None:
    """The docstring's limits are the last numbers that are allowed."""
    assert getattr(Grid(1.0, **{"dimension": 1, name: most}), name) == most
    with pytest.raises(ConfigError, match=name):
        Grid(1.0, **{"dimension": 1, name: most + 1})


def test_the_least_and_the_most_noise_are_256_and_2_to_the_47_spacings() -> None:
    grid = Grid(1.0, 4)
    for inside, outside in ((256.0, 255.9), (2.0**47, 2.0**47 * 1.001)):
        assert grid.sampler_distance(grid.spacing * inside) > 0
        with pytest.raises(ConfigError, match="spacings of the grid"):
            grid.sampler_distance(grid.spacing * outside)


# -- accounting/ledger.py ---------------------------------------------------------------------------------------------


def test_a_ledger_is_read_by_all_and_run_by_nobody(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        acc.Ledger.create(tmp_path / "ledger.jsonl", {}).release()
    finally:
        os.umask(before)
    assert (tmp_path / "ledger.jsonl").stat().st_mode & 0o777 == 0o644


def test_a_ledger_whose_folder_cannot_be_synced_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its handle, and so its lock, is closed: another process may look at the file."""

    def refuse(folder: Path) -> None:
        raise OSError(5, "no")

    monkeypatch.setattr(ledger, "sync_folder", refuse)
    with pytest.raises(LedgerError, match="cannot create") as caught:
        acc.Ledger.create(tmp_path / "ledger.jsonl", {})
    assert caught.value.__traceback__ is not None, "it keeps the ledger from being collected"
    held = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _is_open(name)]
    assert str(tmp_path / "ledger.jsonl") not in held


def _is_open(name: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{name}")


def test_a_charge_of_no_runs_is_no_line_of_a_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    made = acc.Ledger.create(path, {})
    made.charge(acc.Gaussian(1.0), stage="train", count=3)
    made.release()
    first, second = path.read_text("utf-8").splitlines()
    line = json.loads(second)
    assert line.pop("hash") == ledger.seal(line)["hash"]
    path.write_text(first + "\n" + ledger.canonical(ledger.seal({**line, "count": 0})).decode() + "\n", "utf-8")
    with pytest.raises(LedgerError, match="count = 0"):
        acc.read_ledger(path)


# -- accounting/exact.py ----------------------------------------------------------------------------------------------


def test_the_lower_end_of_delta_counts_what_leaks_for_certain() -> None:
    """(0, 0.01) beside little else: no δ below 0.01 is true, and the lower end says so to 12 digits."""
    event = acc.Composed((acc.EpsilonDelta(0.0, 0.01), acc.Gaussian(50.0)))
    low, high = exact.delta_interval(event, 1.0, "add_remove")
    assert 0.01 * (1 - 1e-12) <= low <= high <= 0.0101
