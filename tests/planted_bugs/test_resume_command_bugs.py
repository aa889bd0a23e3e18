"""Planted bugs in ``python -m dpml.train resume=FOLDER``: each patches one seam, and the named check must fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_tables import people, write_people

from dpml import jobs, running, trainer

RUN = (
    "data=table", "data.path=people.csv", "data.schema=people.json", "privacy.delta=1e-4", "method=dp_sgd",
    "method.steps=8", "method.expected_batch_size=40", "method.checkpoint_every=2", "verbose=false", "report=false",
)  # fmt: skip


class Killed(BaseException):
    """Stands for kill −9 inside this process."""


def killed_run(cli: Any, home: Path, name: str) -> Path:
    def killed(*_: Any) -> None:
        raise Killed

    write_people(home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "write_checkpoint", killed)
        with pytest.raises(Killed):
            cli(*RUN, f"hydra.run.dir={name}")
    return home / name


def check_a_changed_configuration_is_refused(cli: Any, home: Path, name: str) -> None:
    folder = killed_run(cli, home, name)
    path = folder / "private/hydra/config.yaml"
    path.write_text(path.read_text().replace("max_grad_norm: 1.0", "max_grad_norm: 0.5"))
    assert cli(f"resume={folder}")[0] == 1, "trained by another configuration than it says"


def check_other_records_at_another_path_are_refused(cli: Any, home: Path, name: str) -> None:
    folder = killed_run(cli, home, name)
    people(seed=3).to_csv(home / "other.csv", index=False)
    assert cli(f"resume={folder}", "data.path=other.csv")[0] == 1, "trained on other records"


CHECKS = (check_a_changed_configuration_is_refused, check_other_records_at_another_path_are_refused)


@pytest.mark.parametrize("check", CHECKS)
def test_checks_pass_unpatched(cli: Any, tmp_path: Path, check: Any) -> None:
    check(cli, tmp_path, "run")


def test_a_configuration_that_is_not_compared_is_found(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resume = jobs.PrivateTrainer.resume
    monkeypatch.setattr(jobs.PrivateTrainer, "resume", lambda *a, configured, **k: resume(*a, **k))
    with pytest.raises(AssertionError, match="another configuration"):
        check_a_changed_configuration_is_refused(cli, tmp_path, "run")


def test_records_that_are_not_compared_are_found(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "records_mac", lambda *_: "same")
    with pytest.raises(AssertionError, match="other records"):
        check_other_records_at_another_path_are_refused(cli, tmp_path, "run")
