"""The report of one run: what it says, what it does not say, and that it is one file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

from dpml.errors import RunFolderError
from dpml.report import write_run_report
from dpml.report.budget import describe_event
from dpml.report.run_facts import plan_rows, quotable_sentence, strength

pytestmark = pytest.mark.usefixtures("quick")
Make = Callable[..., Path]
Read = Callable[[Path], Any]


@pytest.fixture
def page_of(read_page: Read) -> Read:
    """Writes the report of a run and reads it."""

    def write_and_read(folder: Path) -> Any:
        path = write_run_report(folder)
        assert path == folder / "release" / "report.html"
        return read_page(path)

    return write_and_read


def test_says_what_it_must(page_of: Read, run_folder: Make) -> None:
    folder = run_folder(overrides=["+experiment=logreg", "method=dp_sgd", "data.path=my table.csv"])
    text = page_of(folder).text
    for part in (
        "Somebody who sees this model",
        "at most 73.2 % sure",
        "(ε = 1, δ = 1e-5)",
        "add or remove one record (add_remove)",
        "one record",
        "Each person has at most one record.",
        "True positives at 1 % false positives",
        "85.12 %",
        "the public test set of the fixture",
        "Released model Without privacy accuracy 85.12 % 85.33 %",
        "Without privacy: trained on the same public data.",
        "Right answers when guessing whether the record was used 50 %",
        "Nothing charged: bounds are declared, from public knowledge.",
        "Nothing charged. This holds if the settings were chosen without looking at these records",
        "target income with classes <=50K, >50K",
        "python -m dpml.report RUN",
        "enough by the rule",
        "expected batch size",
        "capital-gain",
        "python -m dpml.train +experiment=logreg method=dp_sgd 'data.path=my table.csv'",
        "python -m dpml.verify RUN",
        "zCDP ignores amplification by sampling",
        "Poisson-sampled (q = 0.02764) gaussian",
    ):
        assert part in text, part
    head = json.loads((folder / "release" / "result.json").read_text())["ledger"]["head"]
    assert head in text


def test_accountants_stand_side_by_side(run_folder: Make) -> None:
    html = write_run_report(run_folder()).read_text()
    table = re.search(r'aria-label="Accountants side by side">.*?</table>', html, re.S)
    assert table is not None
    names = re.findall(r'<th scope="row">(\w+)</th>', table.group())
    assert names[0] == "pld"
    assert set(names) == {"pld", "rdp", "zcdp", "exact", "basic"}
    assert "ignores amplification by sampling" in table.group()
    assert "Not applicable here: gdp, optimal, advanced" in html


def test_everything_is_escaped(run_folder: Make) -> None:
    evil = "<script>alert(1)</script>&\"'"
    folder = run_folder(
        overrides=[evil],
        change={"assumptions": [evil], "model": evil, "data": {"name": evil, "classes": [evil]}, "unit": evil},
    )
    html = write_run_report(folder).read_text()
    assert "<script" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "&lt;b&gt;odd&lt;/b&gt;" in html  # a column name of the schema


@pytest.mark.parametrize("method", ["output", "objective"])
def test_a_single_release_has_no_curve(page_of: Read, run_folder: Make, method: str) -> None:
    folder = run_folder(method=method)
    page = page_of(folder)
    assert "By accountant" in page.text
    assert "Over the steps" not in page.text
    assert [image["alt"].split(":")[0] for image in page.images] == ["Trade-off curve", "Bars"]
    assert (folder / "release" / "epsilon_vs_step.png").is_file()


def test_many_steps_have_a_curve(page_of: Read, run_folder: Make) -> None:
    page = page_of(run_folder())
    assert page.images[1]["alt"].startswith("Lines:")
    assert "zCDP" in page.images[1]["alt"]


def test_private_test_data_give_no_figure_of_quality(page_of: Read, run_folder: Make) -> None:
    text = page_of(run_folder(accuracy=None, nonprivate=None)).text
    assert "Not shown: no test set that is declared public was scored" in text
    assert "85." not in text
    assert "Without privacy" not in text


def test_too_small_a_sample_is_said(page_of: Read, run_folder: Make) -> None:
    text = page_of(run_folder(epsilon=0.1)).text
    assert "too small by ×" in text


def test_no_privacy_is_said_first(page_of: Read, run_folder: Make) -> None:
    folder = run_folder(change={"epsilon": "inf", "delta": 0.0, "trajectory": None, "guidance": {}, "steps": 0})
    text = page_of(folder).text
    assert "trained without differential privacy" in text
    assert "no guarantee" in text
    assert "There is no bound" in text
    assert "ε = ∞" in text
    assert "A person with k records is protected" not in text


def test_a_bare_result_and_a_broken_ledger_still_give_a_page(page_of: Read, run_folder: Make) -> None:
    folder = run_folder()
    (folder / "release" / "result.json").write_text('{"epsilon": 2.0, "delta": 1e-6, "method": "dp_sgd"}')
    ledger = folder / "release" / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"count":50', '"count":49', 1))
    (folder / "release" / "schema.json").unlink()
    (folder / "release" / "config.yaml").unlink()
    text = page_of(folder).text
    assert "The ledger cannot be read" in text
    assert "line 2" in text
    assert "(ε = 2, δ = 1e-6)" in text
    ledger.unlink()
    assert "there is no ledger.jsonl" in page_of(folder).text


def test_an_empty_schema_and_a_sparse_trajectory(page_of: Read, run_folder: Make) -> None:
    folder = run_folder(change={"trajectory": {"delta": 1e-5, "steps": [1, 2, 3], "best": [0.0, "inf", 1.0],
                                               "rdp": [1.0], "zcdp": None, "notes": {}}})  # fmt: skip
    (folder / "release" / "schema.json").write_text("{}")
    text = page_of(folder).text
    assert "Not shown, because the accountant cannot bound these events: RDP, zCDP" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "holds no finished run"), ("{", "cannot be read as JSON"), ("[]", "not a result of dpml")],
)
def test_faults_name_the_file(run_folder: Make, content: str | None, message: str) -> None:
    folder = run_folder()
    path = folder / "release" / "result.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(RunFolderError, match=message):
        write_run_report(folder)


def test_sentence_under_replace_one_and_pure_privacy() -> None:
    text = quotable_sentence({"epsilon": 1.0, "delta": 0, "neighboring_relation": "replace_one", "unit": "person"})
    assert "one of two given contents" in text
    assert "per person" in text
    assert "but for a leak" not in text
    assert text.count(".") - text.count("73.2") == 1  # one sentence
    assert "add or remove" in quotable_sentence({"epsilon": 1.0, "delta": 1e-5})


def test_whatever_accuracy_the_attack_rows_show_is_what_the_curve_allows(page_of: Read, run_folder: Make) -> None:
    """The event of the fixture is known, so its total variation is computed here from scratch."""
    folder = run_folder(method="output")  # one Gaussian of noise multiplier 3.7306317
    text = page_of(folder).text
    advantage = 2 * NormalDist().cdf(0.5 / 3.7306317) - 1
    assert (
        f"Advantage (true-positive minus false-positive rate) 0 % {math.ceil(1000 * advantage) / 10} % 46.3 %" in text
    )
    rate = NormalDist().cdf(NormalDist().inv_cdf(0.01) + 1 / 3.7306317)
    assert f"True positives at 1 % false positives 1 % {math.ceil(1e4 * rate) / 100:.2f} % 2.72 %" in text
    assert "“At most” uses the trade-off curve of what was charged" in text


def test_strength_words() -> None:
    assert [strength(e)[0] for e in (0.5, 1.0, 3.0, 10.0, 10.1, float("inf"), None)] == [
        "good", "good", "fair", "fair", "bad", "bad", "bad",
    ]  # fmt: skip


def test_plan_rows_leave_events_out_and_repeat_no_name() -> None:
    rows, first = plan_rows(
        {
            "method": "output",
            "event": {"type": "gaussian", "noise_multiplier": 1.0},
            "noise_multiplier": 3.0,
            "guarantee": {"epsilon": 1.0, "assumptions": ["x"]},
            "parameters": {"noise_multiplier": 3.0, "regularization": 0.01, "inner": {"type": "no_op"}, "none": None},
        }
    )
    assert first == 4
    assert rows == [
        ("method", "output"),
        ("noise multiplier", "3"),
        ("promised ε", "1"),
        ("regularization Λ (mean form)", "0.01"),
    ]


def test_events_in_words() -> None:
    gaussian = {"type": "gaussian", "noise_multiplier": 2.0}
    sampled = {"type": "poisson_sampled", "sampling_probability": 0.01, "event": gaussian}
    both = {"type": "composed", "events": [{"type": "self_composed", "count": 12000, "event": sampled}, gaussian]}
    assert describe_event(both) == (
        "12\u202f000 × Poisson-sampled (q = 0.01) gaussian, noise multiplier 2 + gaussian, noise multiplier 2"
    )
    assert describe_event({"type": "no_op"}) == "no op"
