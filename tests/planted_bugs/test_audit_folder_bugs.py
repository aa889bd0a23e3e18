"""Planted bugs in the folder of an audit: its lock, and which finished pieces it uses again."""

from __future__ import annotations

import contextlib
import fcntl
from pathlib import Path

import numpy as np
import pytest

from dpml.audit.keeping import AuditFolder
from dpml.errors import RunFolderError

Patch = pytest.MonkeyPatch


def check_one_audit_at_a_time(folder: Path) -> None:
    with AuditFolder(folder, {"epsilon": 1}):
        try:
            with AuditFolder(folder, {"epsilon": 1}):
                raise AssertionError("two audits write one folder")
        except RunFolderError:
            pass


def check_pieces_of_another_task_are_not_used(folder: Path) -> None:
    """Scores of half the noise beside those of the claim would be an audit of neither."""
    with contextlib.suppress(KeyboardInterrupt), AuditFolder(folder, {"epsilon": 1}) as first:
        first.keep(0, np.zeros(3))
        raise KeyboardInterrupt
    try:
        with AuditFolder(folder, {"epsilon": 2}) as second:
            assert second.kept(0, 3) is None, "a piece of another audit"
    except RunFolderError:
        pass


def test_no_lock_on_an_audit(tmp_path: Path, monkeypatch: Patch) -> None:
    check_one_audit_at_a_time(tmp_path / "a")
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    with pytest.raises(AssertionError):
        check_one_audit_at_a_time(tmp_path / "b")


def test_pieces_used_whatever_their_task(tmp_path: Path, monkeypatch: Patch) -> None:
    check_pieces_of_another_task_are_not_used(tmp_path / "a")
    monkeypatch.setattr(AuditFolder, "_compare", lambda self: None)
    with pytest.raises(AssertionError):
        check_pieces_of_another_task_are_not_used(tmp_path / "b")
