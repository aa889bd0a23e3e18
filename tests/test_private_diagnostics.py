"""Results keep their private diagnostics to themselves; the custodian can still read them."""

from __future__ import annotations

import dataclasses

import private_checks as checks

from dpml.results import CustodianOnly


def test_nothing_private_shows() -> None:
    checks.check_nothing_private_shows()


def test_nothing_private_leaves_with_a_copy() -> None:
    checks.check_nothing_private_leaves_with_a_copy()


def test_the_custodian_reads_them_as_a_mapping() -> None:
    run = checks.holders()["run"]
    assert run.private["train"]["used"] == 32
    assert set(run.private) >= {"train"}
    assert dataclasses.replace(run, command="x").private == run.private
    assert CustodianOnly({"a": 1}) == {"a": 1}
    assert CustodianOnly() == {}
