"""Planted bugs in sweeps: each patches one seam, and the named check must fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sweep_checks import (
    check_a_job_that_charged_is_not_started_again,
    check_a_search_pays_for_every_run,
    check_a_search_pays_for_its_dearest_candidate,
    check_abandoned_attempts_are_in_the_sum,
    check_an_orphan_starts_no_job,
    check_every_seed_counts_under_the_cap,
    check_no_job_starts_after_a_stop,
)

from dpml import sweeps, workers
from dpml.accounting import Gaussian, Ledger
from dpml.report import sweep, sweep_selection


def two_jobs(folder: Path) -> Path:
    """A sweep of two finished jobs of one Gaussian release each."""
    jobs = []
    for number in range(2):
        release = folder / f"{number}/release"
        release.mkdir(parents=True)
        plan = {"guarantee": {"epsilon": 2.0, "delta": 1e-5, "neighboring_relation": "add_remove"}}
        ledger = Ledger.create(release / "ledger.jsonl", plan)
        ledger.charge(Gaussian(2.0), stage="training")
        ledger.close({"epsilon": 2.0})
        result = {
            "epsilon": 2.0,
            "delta": 1e-5,
            "neighboring_relation": "add_remove",
            "method": "output",
            "metrics": {},
        }
        (release / "result.json").write_text(json.dumps(result))
        jobs.append({"number": number, "overrides": [f"seed={number}"], "folders": [str(number)]})
    (folder / "sweep.json").write_text(json.dumps({"format": 1, "jobs": jobs}))
    return folder


def test_checks_pass_unpatched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abcde":
        (tmp_path / name).mkdir()
    check_a_search_pays_for_its_dearest_candidate()
    check_a_search_pays_for_every_run()
    check_every_seed_counts_under_the_cap(tmp_path / "a")
    check_a_job_that_charged_is_not_started_again(tmp_path / "b")
    check_no_job_starts_after_a_stop(tmp_path / "c", monkeypatch)
    check_an_orphan_starts_no_job(tmp_path / "d", monkeypatch)
    check_abandoned_attempts_are_in_the_sum(two_jobs, tmp_path / "e")


def test_a_price_of_the_first_candidate_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_selection, "dominating", lambda events, relation: events[0])
    with pytest.raises(AssertionError, match="cheaper than its dearest candidate"):
        check_a_search_pays_for_its_dearest_candidate()


def test_a_price_that_does_not_know_how_many_runs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = sweep_selection.RepeatAndSelect
    monkeypatch.setattr(sweep_selection, "RepeatAndSelect", lambda event, mean, shape: real(event, 2, shape))
    with pytest.raises(AssertionError, match="the number of runs is not paid for"):
        check_a_search_pays_for_every_run()


def test_a_cap_that_counts_settings_instead_of_runs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = sweeps._Caps.add, set[int]()

    def once(self: Any, job: Any) -> None:
        if id(job) not in seen:
            seen.add(id(job))
            real(self, job)

    monkeypatch.setattr(sweeps._Caps, "add", once)
    with pytest.raises(AssertionError, match="not counted under the cap"):
        check_every_seed_counts_under_the_cap(tmp_path)


def test_a_second_start_of_a_job_under_way_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "never_started", lambda task: sweeps.read_status(task.folder) != "done")
    with pytest.raises(AssertionError, match="would start again"):
        check_a_job_that_charged_is_not_started_again(tmp_path)


def test_a_stop_that_is_not_heard_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "stop_asked", lambda root: False)
    with pytest.raises(AssertionError, match="starts after the stop"):
        check_no_job_starts_after_a_stop(tmp_path, monkeypatch)


def test_an_orphan_that_goes_on_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_stop_asked", lambda: False)
    with pytest.raises(AssertionError, match="starts without a parent"):
        check_an_orphan_starts_no_job(tmp_path, monkeypatch)


def test_a_sum_of_the_last_attempts_alone_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = sweep.read_charges

    def last(root: Path, job: Any) -> Any:
        charges, problems = real(root, job)
        return charges[-1:], problems

    monkeypatch.setattr(sweep, "read_charges", last)
    with pytest.raises(AssertionError, match="charges are lost"):
        check_abandoned_attempts_are_in_the_sum(two_jobs, tmp_path)
