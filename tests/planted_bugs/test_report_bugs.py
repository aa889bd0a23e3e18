"""Each line by which a report could say too little about a leak, or too much to its reader, broken on purpose."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
from report_folders import write_run

from dpml.accounting import Gaussian
from dpml.report import attack, formats, page, record_checks, records, run, run_facts, utility
from dpml.report.attack import attack_curve
from dpml.report.audit_record import AuditRecord

AUDIT = {"epsilon_lower": 3.0, "delta": 1e-5, "confidence": 0.95, "method": "two_world", "points": []}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from dpml.report import figures

    monkeypatch.setattr(figures, "_svg", lambda *_arguments: "<svg/>")
    return write_run(tmp_path / "run", method="output")


def caught(check: Callable[..., None], *arguments: Any) -> None:
    with pytest.raises(AssertionError):
        check(*arguments)


def changed(folder: Path, **change: Any) -> None:
    path = folder / "release" / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


def written(folder: Path) -> str:
    return run.write_run_report(folder).read_text("utf-8")


def check_too_small_an_epsilon_is_an_alarm(folder: Path) -> None:
    assert "Do not rely on this page" not in written(folder)
    changed(folder, epsilon=0.9)
    found = written(folder)
    changed(folder, epsilon=1.0)
    assert "Do not rely on this page" in found


def check_another_head_is_an_alarm(folder: Path) -> None:
    result = json.loads((folder / "release" / "result.json").read_text())
    changed(folder, ledger={**result["ledger"], "head": "0" * 64})
    found = written(folder)
    changed(folder, ledger=result["ledger"])
    assert "Do not rely on this page" in found


def check_noise_that_is_no_secret_is_an_alarm(folder: Path) -> None:
    changed(folder, assumptions=["NOT PRIVATE: the noise source is not secret (tests only)"])
    found = written(folder)
    changed(folder, assumptions=[])
    assert "Do not rely on this page" not in written(folder)
    assert "No guarantee holds" in found


def check_an_audit_above_the_claim_is_an_alarm(folder: Path) -> None:
    path = folder / "release" / "audit.json"
    path.write_text(json.dumps(AUDIT))
    found = written(folder)
    path.unlink()
    assert "more than the reported ε" in found


def check_numbers_round_up() -> None:
    for value in (0.99991, 1.00001, 2.0001, 9.99951):
        assert Fraction(formats.upper(value)) >= Fraction(value)
    assert Fraction(formats.percent_upper(0.73101).split("\u00a0")[0]) >= Fraction("73.101")


def check_the_curve_bounds_every_attack() -> None:
    """Gaussian noise of multiplier 2: what the best test reaches is known."""
    curve = attack_curve(Gaussian(2.0), 2.1, 1e-5, neighboring_relation="add_remove")
    normal = NormalDist()
    for rate in (0.001, 0.01, 0.1):
        best = normal.cdf(normal.inv_cdf(rate) + 0.5)
        assert curve.true_positive_rates[rate] >= best - 1e-9
    assert curve.advantage >= 2 * normal.cdf(0.25) - 1 - 1e-9


def check_replace_one_doubles_the_shift() -> None:
    """One record replaced moves the release by two sensitivities: the best test reaches Φ(Φ⁻¹(α) + 2/σ)."""
    normal = NormalDist()
    curve = attack_curve(Gaussian(4.0), 3.0, 1e-5, neighboring_relation="replace_one")
    assert curve.true_positive_rates[0.01] >= normal.cdf(normal.inv_cdf(0.01) + 0.5) - 1e-9


def check_private_metrics_stay_private(folder: Path) -> None:
    (folder / "private" / "metrics.json").write_text(json.dumps({"accuracy": 0.4711}))
    (folder / "private" / "diagnostics.json").write_text(json.dumps({"accuracy": 0.4711}))
    changed(folder, metrics={}, nonprivate=None)
    written(folder)
    texts = [path.read_text("utf-8") for path in (folder / "release").glob("report.*")]
    assert not [text for text in texts if "47.11" in text]


def check_a_broken_ledger_is_an_alarm(folder: Path) -> None:
    assert records.read_run(folder).ledger is None
    assert "Do not rely on this page" in written(folder)


def check_markup_is_escaped(folder: Path) -> None:
    changed(folder, model="<script>alert(1)</script>")
    assert "<script" not in written(folder)


def check_invisible_marks_are_seen(folder: Path) -> None:
    changed(folder, model="log\u202ereg")
    assert "\u202e" not in written(folder)


def test_the_epsilon_of_the_charges_is_not_computed_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_too_small_an_epsilon_is_an_alarm(folder)
    monkeypatch.setattr(record_checks, "_epsilon", lambda *_arguments: None)
    caught(check_too_small_an_epsilon_is_an_alarm, folder)


def test_the_tolerance_of_that_check_is_a_tenth(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_too_small_an_epsilon_is_an_alarm(folder)
    monkeypatch.setattr(record_checks, "TOLERANCE", 0.2)
    caught(check_too_small_an_epsilon_is_an_alarm, folder)


def test_noise_that_is_no_secret_is_passed_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_noise_that_is_no_secret_is_an_alarm(folder)
    monkeypatch.setattr(record_checks, "_noise", lambda _record: [])
    caught(check_noise_that_is_no_secret_is_an_alarm, folder)


def test_the_head_is_not_compared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_another_head_is_an_alarm(folder)
    monkeypatch.setattr(record_checks, "_anchor", lambda *_arguments: None)
    caught(check_another_head_is_an_alarm, folder)


def test_an_audit_never_contradicts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_an_audit_above_the_claim_is_an_alarm(folder)
    monkeypatch.setattr(AuditRecord, "contradicts", lambda *_arguments: False)
    caught(check_an_audit_above_the_claim_is_an_alarm, folder)


def test_numbers_are_rounded_to_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    check_numbers_round_up()
    monkeypatch.setattr(formats, "ROUND_CEILING", formats.ROUND_HALF_EVEN)
    caught(check_numbers_round_up)


def test_the_curve_of_half_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    check_the_curve_bounds_every_attack()
    honest = attack._of_event
    monkeypatch.setattr(attack, "_of_event", lambda event, rates, relation: honest(Gaussian(4.0), rates, relation))
    caught(check_the_curve_bounds_every_attack)


def test_the_relation_is_lost_on_the_way_to_the_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    check_replace_one_doubles_the_shift()
    honest = attack._of_event
    monkeypatch.setattr(attack, "_of_event", lambda event, rates, relation: honest(event, rates, "add_remove"))
    caught(check_replace_one_doubles_the_shift)


def test_metrics_come_from_the_private_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_private_metrics_stay_private(folder)
    honest = utility.utility_of

    def leaking(result: Any) -> Any:
        private = json.loads((folder / "private" / "metrics.json").read_text())
        return honest({**result, "metrics": private})

    monkeypatch.setattr(run_facts, "utility_of", leaking)
    caught(check_private_metrics_stay_private, folder)


def test_names_are_not_escaped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_markup_is_escaped(folder)
    page._environment.cache_clear()
    honest = page.Environment
    monkeypatch.setattr(page, "Environment", lambda **settings: honest(**{**settings, "autoescape": False}))
    try:
        caught(check_markup_is_escaped, folder)
    finally:
        page._environment.cache_clear()


def test_marks_that_turn_the_writing_go_through(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_invisible_marks_are_seen(folder)
    monkeypatch.setattr(run, "visible", lambda text: text)
    caught(check_invisible_marks_are_seen, folder)


def test_a_broken_ledger_is_passed_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "release" / "ledger.jsonl"
    path.write_text(path.read_text().replace('"count":1', '"count":2', 1))
    check_a_broken_ledger_is_an_alarm(folder)
    monkeypatch.setattr(run_facts, "check_record", lambda _record: ())
    caught(check_a_broken_ledger_is_an_alarm, folder)
