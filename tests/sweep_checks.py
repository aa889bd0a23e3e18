"""What must hold of a sweep's charges and of its price, as checks that a planted bug makes fail."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import hydra
import pytest

from dpml import accounting, sweeps, workers
from dpml import config as configuration
from dpml.accounting import Gaussian, RepeatAndSelect
from dpml.errors import ConfigError
from dpml.launching import Task
from dpml.report import sweep_selection, write_sweep_report
from dpml.report.records import Charges


def check_a_search_pays_for_its_dearest_candidate() -> None:
    """Half of the candidates have a quarter of the noise: a search over both costs what it costs over those alone."""
    parts = [Charges(k, str(k), Gaussian(2.0 if k % 2 else 8.0), 1.0, 1e-5, "add_remove", True) for k in range(4)]
    alone = accounting.epsilon(RepeatAndSelect(Gaussian(2.0), 4, 1.0), 1e-5, accountant="rdp")
    found = sweep_selection.search_epsilon(parts, 1e-5)
    assert found is not None
    assert found >= alone * (1 - 1e-9), "the search is cheaper than its dearest candidate"


def check_a_search_pays_for_every_run() -> None:
    """More runs to choose among cost more."""
    one, many = (
        sweep_selection.search_epsilon(
            [Charges(k, str(k), Gaussian(2.0), 1.0, 1e-5, "add_remove", True) for k in range(number)], 1e-5
        )
        for number in (2, 200)
    )
    assert one is not None
    assert many is not None
    assert many > one * 1.1, "the number of runs is not paid for"


def check_every_seed_counts_under_the_cap(folder: Path) -> None:
    """Three runs of ε = 1 that differ in the seed only do not fit under a cap of 2."""
    words = [
        "data=synthetic", "data.n=400", "privacy.delta=1e-4", "method=output",
        f"privacy.dataset_ledger={folder}/all.jsonl", "privacy.dataset_epsilon=2", "privacy.dataset_delta=1e-2",
    ]  # fmt: skip
    configuration.register()
    with hydra.initialize_config_dir(str(configuration.config_folder()), version_base="1.3"):
        try:
            sweeps._check_jobs([[*words, f"seed={seed}"] for seed in range(3)])
            refusal = ""
        except ConfigError as error:
            refusal = str(error)
    assert "job 2 of 3" in refusal, "a seed's run is not counted under the cap"


def check_a_job_that_charged_is_not_started_again(folder: Path) -> None:
    """A killed worker's job has a ledger and perhaps no status yet."""
    (folder / "0/release").mkdir(parents=True)
    (folder / "1/private").mkdir(parents=True)
    (folder / "1/private/status.json").write_text('{"status": "running"}')
    tasks = [Task(folder, folder / name, ()) for name in "012"]
    assert [sweeps.never_started(task) for task in tasks] == [False, False, True], "a job under way would start again"


def check_no_job_starts_after_a_stop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(workers.OWNER, str(os.getppid()))
    monkeypatch.setattr(workers, "_parent", None)
    monkeypatch.setattr(workers.signal, "signal", lambda *_: None)
    monkeypatch.setattr(threading.Thread, "start", lambda self: None)
    with workers.one_job(folder) as may_start:
        assert may_start
    workers.ask_to_stop(folder)
    with workers.one_job(folder) as may_start:
        assert not may_start, "a job starts after the stop"


def check_an_orphan_starts_no_job(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(workers.OWNER, str(os.getppid()))
    monkeypatch.setattr(workers, "_parent", 1 + os.getppid())  # the parent was another process
    with workers.one_job(folder) as may_start:
        assert not may_start, "a job starts without a parent"


def check_abandoned_attempts_are_in_the_sum(sweep_of: Callable[[Path], Path], folder: Path) -> None:
    """A job that was started anew has two ledgers; both count."""
    sweep = sweep_of(folder)
    listing = json.loads((sweep / "sweep.json").read_text())
    alone = write_sweep_report(sweep)["composed"]["epsilon"]
    first, second = listing["jobs"]
    listing["jobs"] = [{**first, "folders": [*second["folders"], *first["folders"]]}]
    (sweep / "sweep.json").write_text(json.dumps(listing))
    found = write_sweep_report(sweep)["composed"]
    assert found["epsilon"] == pytest.approx(alone, rel=1e-9), "an abandoned attempt's charges are lost"
