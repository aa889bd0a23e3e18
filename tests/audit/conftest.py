"""Tests of audits use fixed noise: what they find is then the same in every run."""

from __future__ import annotations

import audit_checks
import pytest


@pytest.fixture(autouse=True)
def _repeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    audit_checks.make_repeatable(monkeypatch)
