"""Planted bugs in the tracker: each patches one seam, and the named check must fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tracking_checks import (
    check_mlflow_is_told_to_keep_still,
    check_only_the_release_is_logged,
    check_the_custodian_s_path_stays_here,
    install,
)

from dpml import config, tracking


def test_checks_pass_unpatched(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = install(monkeypatch)
    check_only_the_release_is_logged(tmp_path / "a", client)
    check_mlflow_is_told_to_keep_still(tmp_path / "b", client)
    check_the_custodian_s_path_stays_here(cli, tmp_path)


def test_links_that_are_followed_out_of_the_release_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = install(monkeypatch)
    monkeypatch.setattr(tracking, "released_files", lambda release: [p for p in release.glob("*") if p.is_file()])
    with pytest.raises(AssertionError, match="a private file was logged"):
        check_only_the_release_is_logged(tmp_path, client)


def test_a_whole_run_folder_that_is_logged_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client, files = install(monkeypatch), tracking.released_files
    monkeypatch.setattr(tracking, "released_files", lambda release: files(release.parent))
    with pytest.raises(AssertionError, match="a private file was logged"):
        check_only_the_release_is_logged(tmp_path, client)


def test_telemetry_that_is_left_on_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = install(monkeypatch)
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
    monkeypatch.setattr(tracking, "SWITCHES", {"MLFLOW_ALLOW_FILE_STORE": "true"})
    with pytest.raises(AssertionError, match="may report over the network"):
        check_mlflow_is_told_to_keep_still(tmp_path, client)


def test_a_store_s_path_that_is_published_is_found(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    monkeypatch.setattr(config, "PATH_KEYS", ("data.path",))
    with pytest.raises(AssertionError, match="was published"):
        check_the_custodian_s_path_stays_here(cli, tmp_path)
