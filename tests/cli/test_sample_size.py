"""``python -m dpml.sample_size``: every quantity solved for, tables, JSON, the plot, and what is refused."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from scipy import stats

from dpml import sample_size

METHODS = ("output", "objective", "dp_sgd")
COLUMNS = {"rule", *METHODS, "statistics", "randomized_response", "laplace_mean"}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def answer(*words: str) -> tuple[int, str, str]:
        status = sample_size.main(list(words))
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return answer


@pytest.fixture
def solve(run: Any) -> Any:
    def found(*words: str) -> Any:
        status, out, err = run(*words, "--json")
        assert status == 0, err
        return json.loads(out)

    return found


def test_n_by_the_rule_and_by_each_method(solve: Any) -> None:
    found = solve("d=100", "epsilon=0.5", "delta=1e-5")
    assert (found["solved_for"], found["solution_norm"], found["confidence"]) == ("n", 15.0, 0.95)
    (answer,) = found["answers"]
    assert answer["given"] == {"d": 100, "epsilon": 0.5, "excess_risk": 0.05}
    assert set(answer["values"]) == COLUMNS
    s = 7.031673  # s(0.5, 1e-5), FORMULAS' 7.032 with more digits from the mpmath solution of the tests beside
    assert answer["values"]["rule"] == math.ceil(10 * math.sqrt(math.log(1e5)) / (0.5 * 0.05**2)) == 27145
    assert answer["values"]["dp_sgd"] == pytest.approx(15 * 10 * s / 0.05, rel=1e-4)
    assert answer["values"]["output"] == pytest.approx((0.75 / 0.05) ** 1.5 * 225 * s / math.sqrt(2), rel=1e-4)
    assert answer["values"]["statistics"] == 90_000
    assert all(isinstance(value, int) for value in answer["values"].values())


@pytest.mark.parametrize("name", ["n", "d", "epsilon", "excess_risk"])
def test_every_name_can_be_left_out(solve: Any, name: str) -> None:
    """The rule inverted: with n = √d √ln(1/δ)/(ε α²) all four fit together."""
    given = {"n": 27_144.0, "d": 100, "epsilon": 0.5, "excess_risk": 0.05}
    delta = math.exp(-((27_144 * 0.5 * 0.05**2 / 10) ** 2))
    expected = given.pop(name)
    words = [f"{key}={value}" for key, value in given.items()]
    found = solve(*words, f"delta={delta!r}", "solution_norm=1")
    assert found["solved_for"] == name
    assert found["answers"][0]["values"]["rule"] == pytest.approx(expected, rel=1e-6, abs=1.1 if name in "nd" else 0)
    assert all(found["answers"][0]["values"][method] is not None or name == "d" for method in METHODS)


def test_means_reach_their_error_with_their_confidence(solve: Any) -> None:
    """Exact tails: binomial reports for randomized response, whatever the share; e^{−αnε} for Laplace noise."""
    for confidence in (0.8, 0.95):
        answer = solve("d=1", "epsilon=1", "delta=1e-5", "excess_risk=0.1", f"confidence={confidence}")["answers"][0]
        n, notes = answer["values"]["randomized_response"], answer["course_notes"]["randomized_response"]
        truth = math.e / (1 + math.e)  # a true answer with probability ½ + γ, ε = 2 artanh(2γ)
        gamma = truth - 0.5
        assert notes == math.ceil(1 / (gamma * 0.1) ** 2)
        for count, sure in ((n, confidence), (notes, 15 / 16)):
            for yes in (0, count // 2, count):
                mine = stats.binom(yes, truth).pmf(np.arange(yes + 1))
                others = stats.binom(count - yes, 1 - truth).pmf(np.arange(count - yes + 1))
                reports = np.arange(count + 1) / count
                estimate = (reports - (0.5 - gamma)) / (2 * gamma)
                far = abs(estimate - yes / count) >= 0.1
                assert np.convolve(mine, others)[far].sum() <= 1 - sure
        assert answer["values"]["laplace_mean"] == math.ceil(-math.log(1 - confidence) / 0.1)
        assert math.exp(-0.1 * answer["values"]["laplace_mean"]) <= 1 - confidence
        assert answer["course_notes"]["laplace_mean"] == 20


@pytest.mark.parametrize("name", ["n", "epsilon", "excess_risk"])
def test_means_are_inverted(solve: Any, name: str) -> None:
    given = {"n": 40_000, "d": 10, "epsilon": 0.8, "excess_risk": 0.03}
    del given[name]
    words = [f"{key}={value}" for key, value in given.items()]
    answer = solve(*words, "delta=1e-6", "confidence=0.9")["answers"][0]
    for column, tail in (("randomized_response", math.log(2 / 0.1) / 8), ("laplace_mean", math.log(1 / 0.1))):
        full = given | {name: answer["values"][column]}
        if column == "laplace_mean":
            needed = tail / (full["epsilon"] * full["excess_risk"])
        else:
            needed = tail / (math.tanh(full["epsilon"] / 2) / 2 * full["excess_risk"]) ** 2
        assert needed == pytest.approx(full["n"], rel=1e-9, abs=1)


def test_several_values_are_a_table_of_all_combinations(run: Any, solve: Any) -> None:
    words = ("d=133", "epsilon=0.1,1,10", "delta=1e-5", "excess_risk=0.02,0.05")
    answers = solve(*words)["answers"]
    assert [(a["given"]["epsilon"], a["given"]["excess_risk"]) for a in answers] == [
        (epsilon, risk) for epsilon in (0.1, 1.0, 10.0) for risk in (0.02, 0.05)
    ]
    assert len({a["values"]["objective"] for a in answers}) == 6
    out = run(*words)[1]
    rows = [line.split() for line in out.splitlines() if line.startswith("  ") and "-" not in line]
    assert rows[0] == ["d", "epsilon", "excess_risk", "rule", *METHODS, "statistics", *list(rows[0][-2:])]
    assert [row[:3] for row in rows[1:]] == [["133", e, a] for e in ("0.1", "1", "10") for a in ("0.02", "0.05")]
    assert [int(row[5].replace(",", "")) for row in rows[1:]] == [a["values"]["objective"] for a in answers]


def test_text_names_the_rule_the_default_and_what_is_not_reached(run: Any) -> None:
    _, out, _ = run("d=133", "epsilon=1", "delta=1e-5")
    assert "15,653   n > sqrt(d) sqrt(log(1/delta)) / (epsilon excess_risk^2)" in out
    assert "excess_risk = 0.05 is the default." in out
    _, out, _ = run("n=36000", "d=133", "delta=1e-5", "excess_risk=0.02")
    assert "its bound asks for n = 562,500" in out
    _, out, _ = run("n=36000", "epsilon=1", "delta=1e-5", "excess_risk=0.02")
    assert "d does not enter, and n is too small for any" in out
    assert "randomized" not in out
    _, out, _ = run("n=300", "d=133", "epsilon=0.01", "delta=1e-5")
    assert "not below log 2 = 0.693" in out
    _, out, _ = run("d=133", "epsilon=0.001", "delta=1e-3")
    assert "delta = 0.001 is not below 1/n" in out


def test_what_nothing_reaches_says_for_which_line_why(run: Any) -> None:
    status, _, err = run("n=10", "epsilon=0.1", "delta=1e-5", "excess_risk=1e-6")
    assert status == 2
    assert "even d = 1 is too many: raise n, epsilon or excess_risk (objective, dp_sgd, rule); d does not enter" in err
    assert "n is too small for any (output)." in err


def test_epsilon_and_excess_risk_are_shown_rounded_up(run: Any, solve: Any) -> None:
    words = ("n=36000", "d=133", "delta=1e-5", "excess_risk=0.02")
    exact = solve(*words)["answers"][0]["values"]
    shown = [line.split() for line in run(*words)[1].splitlines()]
    assert float(next(row for row in shown if row[:1] == ["objective"])[1]) >= exact["objective"]
    assert float(next(row for row in shown if row[:1] == ["rule"])[1]) >= exact["rule"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "nothing is given"),
        ("d=133 epsilon=1", "delta is missing"),
        ("d=133 epsilon=0 delta=1e-5", "epsilon = '0' is not allowed"),
        ("d=133 epsilon=inf delta=1e-5", "epsilon = 'inf' is not allowed"),
        ("d=133 epsilon=nan delta=1e-5", "epsilon = 'nan' is not allowed"),
        ("d=133 epsilon=-1 delta=1e-5", "epsilon = '-1' is not allowed"),
        ("d=133 epsilon=1, delta=1e-5", "epsilon = '' is not allowed: it must be a number"),
        ("d=1.5 epsilon=1 delta=1e-5", "d = '1.5' is not allowed: it must be a whole number"),
        ("n=0 d=1 delta=1e-5", "n = '0' is not allowed"),
        ("n=10 d=1 delta=0.1", "delta = 0.1 is not allowed: it must be below 1/n"),
        ("d=133 epsilon=1 delta=0", "delta = '0' is not allowed"),
        ("d=133 epsilon=1 delta=1", "delta = '1' is not allowed"),
        ("d=133 epsilon=1 delta=1e-5 confidence=1", "confidence = '1' is not allowed"),
        ("d=133 epsilon=1 delta=1e-5 excess_risk=0", "excess_risk = '0' is not allowed"),
        ("d=133 epsilon=1 delta=1e-5 solution_norm=0", "solution_norm = '0' is not allowed"),
        ("d=133 epsilon=1 delta=1e-5 neighboring_relation=both", "neighboring_relation"),
        ("d=133 epsilon=1 delta=1e-5 alpha=1", "Did you mean excess_risk=…?"),
        ("d=133 epsilom=1 delta=1e-5", "Did you mean epsilon=…?"),
        ("d=133 epsilon delta=1e-5", "'epsilon' is not NAME=VALUE"),
        ("d=133 d=1 epsilon=1 delta=1e-5", "d is given twice"),
        ("d=133 delta=1e-5", "n and epsilon are missing"),
        ("delta=1e-5 excess_risk=0.1", "n and d and epsilon are missing"),
        ("n=1000 d=133 epsilon=1 delta=1e-5 excess_risk=0.1", "nothing to solve for"),
        ("n=36000 epsilon=1 delta=1e-5 excess_risk=0.0002", "no d reaches this: even d = 1 is too many"),
        (f"d={','.join(['1'] * 40)} epsilon={','.join(['1'] * 40)} delta=1e-5", "more than 1000 rows"),
        ("d=133 epsilon=1 delta=1e-5 --plot nowhere/a.png", "in a folder that exists"),
        ("d=133 epsilon=1 delta=1e-5 --plot a.pdf", "ends in .png"),
        ("n=100 epsilon=1 delta=1e-5 --plot a.png", "needs d"),
        ("n=100 d=5 epsilon=1 delta=1e-5 --plot a.png", "needs excess_risk"),
        ("d=1,2 epsilon=1 delta=1e-5 --plot a.png", "one d, but 2"),
        ("d=1 n=100,200 delta=1e-5 --plot a.png", "one n, but several"),
    ],
)
def test_what_is_refused_says_why(run: Any, words: str, message: str) -> None:
    status, out, err = run(*words.split())
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def test_unreachable_cells_of_a_table_are_dashes_with_their_reason(run: Any) -> None:
    status, out, _ = run("n=50,36000", "d=133", "delta=1e-5", "excess_risk=0.02")
    assert status == 0
    assert "- randomized_response: no epsilon is enough below n = 4,612" in out


def test_the_plot_is_a_picture_with_a_line_per_method(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.axes import Axes

    drawn: dict[str, tuple[Any, Any]] = {}
    plain = Axes.plot

    def plot(self: Axes, x: Any, y: Any, **style: Any) -> Any:
        drawn[style["label"]] = (x, y)
        return plain(self, x, y, **style)

    monkeypatch.setattr(Axes, "plot", plot)
    file = tmp_path / "n.png"
    status, out, err = run("d=133", "epsilon=0.1,10", "delta=1e-5", "--plot", str(file))
    assert status == 0, err
    assert str(file) in out
    assert matplotlib.image.imread(file).std() > 0.05
    assert len(drawn) == 7
    x, y = drawn["dp_sgd, dp_gd"]
    assert (x[0], x[-1]) == (0.1, pytest.approx(10.0))
    assert y[0] == pytest.approx(106_387, rel=1e-4)
    assert all(a >= b for a, b in itertools.pairwise(y))


def test_a_plot_that_cannot_be_written_is_one_line(run: Any, tmp_path: Path) -> None:
    (tmp_path / "n.png").mkdir()
    status, _, err = run("d=133", "epsilon=1", "delta=1e-5", "--plot", str(tmp_path / "n.png"))
    assert status == 2
    assert "can be written" in err
