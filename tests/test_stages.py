"""Stages on the budget of a run, one by one: shares and plan, schema, bounds, categories, labels."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import stage_checks as checks
from small_tables import SCHEMA, people, write_people
from stage_checks import RELATIONS, SHARES, open_schema, open_table, stage_trainer

from dpml import PrivateData, PrivateSearch, PrivateTrainer, accounting
from dpml.data import CategoricalColumn, Encoder, NumericColumn, Schema
from dpml.errors import ConfigError, SchemaError, UnsupportedEventError
from dpml.mechanisms import FixedNoise
from dpml.stages.bounds import BoundsFinder, finder_of
from dpml.stages.categories import CategoryFinder, key_of, places
from dpml.stages.labels import LabelCounter

ARRAYS = PrivateData.from_arrays(np.zeros((9, 2)), [0, 1, 0] * 3, norm_bound=1.0, classes=[0, 1], n_declared=9)


# -- shares and the plan ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("shares", "match"),
    [
        (
            {"bound": 0.1},
            "stage = 'bound' is not allowed: it must be one of bounds, categories, labels, center, metrics",
        ),
        ({"bounds": -0.1}, r"shares\.bounds = -0\.1"),
        ({"bounds": 1.0}, r"shares\.bounds = 1\.0"),
        ({"bounds": 1e-9}, r"shares\.bounds = 1e-09"),
        ({"metrics": math.nan}, r"shares\.metrics = nan"),
        ({"metrics": True}, r"shares\.metrics = True"),
        ({"bounds": 0.5, "metrics": 0.5}, "less than 1 in all"),
        ([("bounds", 0.1)], "a mapping from stages"),
    ],
)
def test_shares_that_make_no_sense_are_refused(shares: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        PrivateTrainer(shares=shares)


@pytest.mark.parametrize(
    ("data", "changes", "match"),
    [
        (ARRAYS, {"shares": {"bounds": 0.1}}, "no column of the schema says \"bounds\": \"private\""),
        (ARRAYS, {"shares": {"categories": 0.1}}, "no column of the schema says \"categories\": \"discover\""),
        (ARRAYS, {"shares": {"metrics": 0.1}}, "without a hold-out"),
        (ARRAYS, {"shares": {"labels": 0.1}, "noise_multiplier": 1.0, "method": "dp_sgd", "epsilon": None},
         "Give epsilon"),
        (PrivateData.digits(), {"shares": {"metrics": 0.1}, "model": "softmax"}, "the test set is public"),
        (PrivateData.digits(), {"shares": {"labels": 0.1}, "method": "nonprivate", "model": "softmax", "epsilon": None},
         "There is no budget to share"),
        (PrivateData.diabetes(), {"shares": {"labels": 0.1}, "model": "ridge"}, "which has no classes"),
    ],
)  # fmt: skip
def test_a_stage_that_the_data_cannot_have_is_refused(data: PrivateData, changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        PrivateTrainer(**{"epsilon": 1.0, "model": "logreg", **changes}).plan(data)


def test_open_columns_need_their_share(tmp_path: Path) -> None:
    data = open_table(tmp_path)
    for left_out, word in (("bounds", '\'age\' says "bounds": "private"'), ("categories", "'town' says")):
        shares = {name: share for name, share in SHARES.items() if name != left_out}
        for method in ("dp_sgd", "objective"):
            with pytest.raises(ConfigError, match=word):
                stage_trainer(method, shares=shares).check(data)
    with pytest.raises(ConfigError, match="'age' says"):
        PrivateSearch({"regularization": [0.1, 1.0]}, {"method": "output"}).fit(
            open_table(tmp_path / "b", test_fraction=None)
        )
    with pytest.raises(SchemaError, match=r"only a run with privacy\.shares finds"):
        Encoder(Schema.from_dict(open_schema())).transform(people(3))
    with pytest.raises(SchemaError, match=r"only a run with privacy\.shares finds"):
        data.load(FixedNoise(0))


def test_labels_of_records_that_are_read_as_they_are_drawn_are_refused(tmp_path: Path) -> None:
    X, y = checks.rows_of(50)
    np.save(tmp_path / "X.npy", X)
    data = PrivateData.from_arrays(tmp_path / "X.npy", y, norm_bound=1.0, classes=[0, 1], n_declared=50)
    with pytest.raises(ConfigError, match="dp_sgd reads these as they are drawn"):
        PrivateTrainer(method="dp_sgd", epsilon=1.0, shares={"labels": 0.1}, run_dir=tmp_path / "run").fit(data)
    assert not (tmp_path / "run").exists()
    assert "labels" in PrivateTrainer(method="output", epsilon=1.0, shares={"labels": 0.1}).fit(data).stages


def test_categories_are_not_for_pure_epsilon(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pure ε-DP"):
        stage_trainer("output", variant="pure", delta=None).plan(open_table(tmp_path))


def test_an_accountant_that_cannot_bound_a_stage_refuses_it_by_name(tmp_path: Path) -> None:
    for accountant in ("rdp", "zcdp"):
        for look in (PrivateTrainer.plan, PrivateTrainer.check):
            with pytest.raises(UnsupportedEventError, match="epsilon_delta"):
                look(stage_trainer("dp_sgd", accountant=accountant), open_table(tmp_path))


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    ("method", "accountant"),
    [("dp_sgd", "best"), ("dp_gd", "rdp"), ("dp_gd", "best"), ("dp_gd", "zcdp"), ("objective", "best"),
     ("output", "best"), ("output", "pld"), ("output", "zcdp")],
)  # fmt: skip
def test_stages_and_training_meet_the_budget_together(method: str, accountant: str, relation: str) -> None:
    """The composed event is within ε, and training has less noise than ε − Σ ε_s alone would give it."""
    X, y = checks.rows_of(500)
    data = PrivateData.from_arrays(X, y, X_test=X, y_test=y, norm_bound=1.0, classes=[0, 1], n_declared=500)
    settings: dict[str, Any] = {"delta": 1e-4, "accountant": accountant, "neighboring_relation": relation}
    plan = stage_trainer(method, epsilon=2.0, shares={"labels": 0.1, "metrics": 0.1}, **settings).plan(data)
    found = accounting.epsilon(plan.event, 1e-4, accountant=accountant, neighboring_relation=relation)
    assert 1.98 < found <= 2.0
    assert plan.guarantee.epsilon == 2.0
    assert len(plan.event.events) == 3  # labels, training, metrics
    alone = stage_trainer(method, epsilon=2.0 * (1 - 0.2), shares=None, **settings).plan(data)
    assert plan.noise_multiplier <= alone.noise_multiplier * (1 + 1e-3)
    if method != "objective" and accountant != "zcdp":  # ε adds up with the one, ρ = ε²/2 is no bargain in the other
        assert plan.noise_multiplier < 0.97 * alone.noise_multiplier
    whole = stage_trainer(method, epsilon=2.0, shares=None, **settings).plan(data)
    assert whole.noise_multiplier < plan.noise_multiplier


def test_pure_epsilon_adds_up_exactly() -> None:
    X, y = checks.rows_of(500)
    data = PrivateData.from_arrays(X, y, X_test=X, y_test=y, norm_bound=1.0, classes=[0, 1], n_declared=500)
    for method in ("output", "objective"):
        trainer = stage_trainer(method, variant="pure", delta=None, epsilon=1.0, shares={"labels": 0.1, "metrics": 0.2})
        result = trainer.fit(data)
        assert result.guarantee.delta == 0.0
        assert result.guarantee.epsilon == pytest.approx(1.0, rel=1e-9)
        assert result.guarantee.epsilon <= 1.0


def test_the_plan_shows_each_stage_with_its_event(tmp_path: Path) -> None:
    plan = stage_trainer("dp_sgd").plan(open_table(tmp_path))
    rows = dict(plan.rows())
    assert [name for name in rows if name.startswith("stage ")] == [
        "stage bounds", "stage categories", "stage labels", "stage train", "stage metrics"
    ]  # fmt: skip
    assert rows["stage bounds"] == "share 0.1: ε = 0.4 for age, money: 2 × pure(0.2)"
    assert rows["stage labels"] == "share 0.05: ε = 0.2: pure(0.2)"
    assert "δ = 1e-6 for town" in rows["stage categories"]
    assert rows["stage train"].startswith("the rest: 6 × poisson_sampled(")
    written = plan.to_dict()["stages"]
    assert written["bounds"]["columns"] == ["age", "money"]
    assert written["metrics"]["epsilon"] == pytest.approx(0.4)
    assert accounting.from_json(written["bounds"]["event"]) == plan.stages.get("bounds").event
    assert any("except for what the charged stages found" in note for note in plan.guarantee.assumptions)
    assert plan.data["n_features"] == 4 + 4 + 6 + 1  # knots, knots, most and other, constant: public before any record


def test_without_shares_nothing_changes(tmp_path: Path) -> None:
    table, schema = write_people(tmp_path / "data")
    data = PrivateData.from_table(table, schema=schema)
    outcomes = []
    for k, shares in enumerate((None, {}, {"bounds": 0.0, "metrics": 0})):
        trainer = PrivateTrainer(method="output", epsilon=1.0, shares=shares, noise_source=FixedNoise(1),
                                 run_dir=tmp_path / str(k))  # fmt: skip
        result = trainer.fit(data)
        assert trainer.shares is None
        assert "stages" not in result.plan.to_dict()
        assert "stages" not in result.to_dict()
        assert not (tmp_path / str(k) / "private/stages.json").exists()
        outcomes.append(result.model.weights["weight"])
    assert (outcomes[0] == outcomes[1]).all()
    assert (outcomes[0] == outcomes[2]).all()


# -- the schema -------------------------------------------------------------------------------------------------------
def test_open_columns_survive_json_and_are_checked() -> None:
    schema = Schema.from_dict(open_schema())
    assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema
    assert [column.name for column in schema.open_columns] == ["age", "money", "town"]
    money = schema.column("money")
    assert isinstance(money, NumericColumn)
    assert (money.magnitude, money.bounds) == ((1.0, 65536.0), (0.0, 65536.0))
    assert Schema.from_dict(SCHEMA).open_columns == ()


@pytest.mark.parametrize(
    ("entry", "match"),
    [
        ({"bounds": "Private"}, "bounds = 'Private'"),
        ({"bounds": [0, 1], "magnitude": [1, 2]}, 'magnitude belongs to "bounds": "private"'),
        ({"bounds": "private", "magnitude": [0, 2]}, "magnitude"),
        ({"bounds": "private", "magnitude": [2, 2]}, "magnitude"),
        ({"bounds": "private", "magnitude": [1, math.inf]}, "magnitude"),
        ({"bounds": "private", "magnitude": 7}, "magnitude"),
        ({"kind": "categorical", "categories": "find"}, "categories = 'find'"),
        ({"kind": "categorical", "categories": ["a"], "most": 3}, 'most belongs to "categories": "discover"'),
        ({"kind": "categorical", "categories": "discover", "most": 0}, "most = 0"),
        ({"kind": "categorical", "categories": "discover", "most": 2.0}, "most = 2.0"),
    ],
)
def test_faulty_open_columns_are_refused(entry: dict[str, Any], match: str) -> None:
    with pytest.raises(SchemaError, match=match):
        Schema.from_dict(open_schema(age={"kind": "numeric", **entry}))


def test_magnitudes_are_moved_outwards_to_powers_of_two() -> None:
    for given, wanted in (((1, 1000), (1, 1024)), ((3, 4), (2, 4)), ((0.3, 64), (0.25, 64)), ((5, 5.5), (4, 8))):
        column = {"kind": "numeric", "bounds": "private", "magnitude": list(given)}
        schema = Schema.from_dict(open_schema(age=column))
        assert schema.column("age").magnitude == wanted


# -- bounds -----------------------------------------------------------------------------------------------------------
def slow_counts(values: Any, edges: np.ndarray, signed: bool) -> list[int]:
    """Every value compared with every edge."""
    counts = [0] * (len(edges) - 1)
    middle = (len(edges) - 2) // 2 if signed else 0
    for value in values:
        if math.isnan(value):
            continue
        least = edges[middle + 1]
        if abs(value) < least or (not signed and value < 0 and abs(value) < least):
            counts[middle] += 1
        elif value > 0:
            counts[max(k for k in range(middle + 1, len(counts)) if edges[k] <= value)] += 1
        elif signed:
            counts[min(k for k in range(middle) if value <= -edges[middle + 1] and -value >= -edges[k + 1])] += 1
        else:
            counts[0] += 1
    return counts


@pytest.mark.parametrize("signed", [True, False])
def test_bins_are_those_of_a_slow_loop(signed: bool) -> None:
    finder = BoundsFinder((0.25, 64.0), 1.0, "add_remove", signed)
    edges = [0.25, 0.5, 1, 2, 4, 8, 16, 32, 64]
    assert finder.edges.tolist() == ([-e for e in edges[::-1]] if signed else [0.0]) + edges
    exact = [float(s * e) for e in edges for s in (1, -1)]
    near = [math.nextafter(value, toward) for value in exact for toward in (-1e9, 1e9)]
    odd = [0.0, -0.0, 1e-320, math.inf, -math.inf, math.nan, 1e300, -1e300, 0.1, -0.1, 63.9]
    values = np.array([*exact, *near, *odd, *np.random.default_rng(0).normal(0, 20, 200)])
    assert finder.counts(values).tolist() == slow_counts(values.tolist(), finder.edges, signed)
    assert finder.counts(values).sum() == len(values) - 1  # all but the NaN


@pytest.mark.parametrize(("relation", "most"), [("add_remove", 1), ("replace_one", 2)])
def test_one_record_moves_the_counts_by_the_declared_sensitivity(relation: str, most: int) -> None:
    finder = BoundsFinder((2.0**-20, 2.0**40), 0.5, relation)
    assert finder.mechanism.sensitivity == most
    assert accounting.epsilon(finder.event, 0.0, neighboring_relation=relation) <= 0.5
    rng = np.random.default_rng(2)
    values = np.concatenate([rng.normal(0, 1e3, 50), [math.nan, math.inf, -math.inf, 0.0]])
    reached = 0
    for k in range(len(values)):
        if relation == "add_remove":
            other = np.delete(values, k)
        else:
            other = values.copy()
            other[k] = -values[k - 1]
        reached = max(reached, int(np.abs(finder.counts(values) - finder.counts(other)).sum()))
    assert reached == most


def test_bounds_are_the_outer_edges_of_occupied_bins() -> None:
    finder = BoundsFinder((1.0, 16.0), 1.0, "add_remove")  # edges −16 −8 −4 −2 −1 1 2 4 8 16
    full, few = finder.threshold, finder.threshold - 1

    def bounds(*occupied: int) -> tuple[float, float]:
        return finder.read_off(np.array([full if k in occupied else few for k in range(9)]))

    assert bounds(5, 7) == (1.0, 8.0)
    assert bounds(0) == (-16.0, -8.0)
    assert bounds(4, 6) == (0.0, 4.0)  # the bin around 0 at an end is 0 itself
    assert bounds(2, 4) == (-4.0, 0.0)
    assert bounds(4) == (-1.0, 1.0)
    assert bounds(2, 4, 8) == (-4.0, 16.0)
    assert bounds() == (-16.0, 16.0)  # nothing: the public range
    positive = BoundsFinder((1.0, 16.0), 1.0, "add_remove", signed=False)
    assert positive.read_off(np.full(5, positive.threshold)) == (0.0, 16.0)


def test_empty_bins_stay_below_the_threshold() -> None:
    """With no record some bin passes with probability below 0.01: of 400 runs fewer than 22 do.

    P(Binomial(400, 0.01) >= 22) < 1e-9; a threshold for one bin instead of all (a forgotten union) passes in most runs.
    """
    finder = BoundsFinder((2.0**-20, 2.0**40), 0.3, "add_remove")
    noise = FixedNoise(11)
    passed = sum(finder.release(np.zeros(0), noise)["occupied_bins"] > 0 for _ in range(400))
    assert passed < 22
    one = BoundsFinder((1.0, 2.0), 0.3, "add_remove", signed=False)
    careless = finder.mechanism.release(np.zeros((200, 121), dtype=int)[0], noise).value
    assert one.threshold < finder.threshold
    assert len(careless) == len(finder.edges) - 1 == 121


def test_found_bounds_hold_the_bulk_of_a_column() -> None:
    rng = np.random.default_rng(3)
    values = np.exp(rng.normal(3.0, 1.0, 20_000))  # 95 % between 2.8 and 143
    finder = BoundsFinder((2.0**-20, 2.0**40), 0.1, "add_remove")
    low, high = finder.release(values, FixedNoise(1))["bounds"]
    assert ((values >= low) & (values <= high)).mean() > 0.9
    assert high <= 1024
    assert low >= 0.25


def test_log_scales_have_no_negative_side() -> None:
    column = Schema.from_dict(open_schema()).column("money")
    assert isinstance(column, NumericColumn)
    finder = finder_of(column, 1.0, "add_remove")
    assert finder.edges[0] == 0.0
    assert finder.counts(np.array([-5.0, 0.5, -math.inf, 1.0])).tolist()[:2] == [3, 1]


# -- categories and labels --------------------------------------------------------------------------------------------
def category_finder(policy: str = "other", most: int = 3, relation: str = "add_remove") -> CategoryFinder:
    schema = Schema.from_dict(
        open_schema(town={"kind": "categorical", "categories": "discover", "most": most, "on_invalid": policy})
    )
    column = schema.column("town")
    assert isinstance(column, CategoricalColumn)
    return CategoryFinder(column, 1.0, 1e-5, relation)


def test_a_record_gives_one_text_at_most() -> None:
    cells = pd.Series(["a", " a ", 3, 3.0, None, math.nan, "", "x" * 201, "other", True], dtype=object)
    assert category_finder().counts(cells) == {"a": 2, "3": 2, "True": 1}
    assert category_finder("zero").counts(cells) == {"a": 2, "3": 2, "True": 1, "other": 1}
    texts = pd.Series(["b", "a", " b", None, "b"])
    assert category_finder().counts(texts) == {"a": 1, "b": 3}
    assert category_finder().counts(texts[:0]) == {}
    assert category_finder().counts(pd.Series([1.0, 2.0, 1.0, math.nan])) == {"1": 2, "2": 1}


def test_one_record_changes_one_key_however_the_column_is_kept(tmp_path: Path) -> None:
    checks.check_one_record_changes_one_key(tmp_path)


@pytest.mark.parametrize(
    ("text", "key"),
    [("01234", "1234"), ("+5", "5"), ("2.50", "2.5"), ("1e3", "1000"), ("-0.0", "0"),
     ("9007199254740993", "9007199254740992"), ("True",) * 2,
     ("1_000",) * 2, ("nan",) * 2, ("Infinity", "inf"), ("0x10",) * 2, ("a1",) * 2, (None, None)],
)  # fmt: skip
def test_numbers_have_one_spelling(text: str | None, key: str | None) -> None:
    assert key_of(text) == key


def test_frequent_texts_are_found_and_rare_ones_are_not() -> None:
    finder = category_finder(most=3)
    cells = pd.Series(["big"] * 900 + ["mid"] * 500 + ["low"] * 300 + ["less"] * 200 + ["once"])
    found = finder.release(cells, FixedNoise(2))
    assert found["categories"] == ["big", "low", "mid"]  # the three largest, by name
    assert found["listed"] == 4
    assert places(finder.column, found["categories"]) == ("big", "low", "mid")
    assert places(finder.column, ["(unused 1)"]) == ("(unused 1)", "(unused 2)", "(unused 3)")
    assert places(finder.column, []) == ("(unused 1)", "(unused 2)", "(unused 3)")


@pytest.mark.parametrize(("relation", "changes"), [("add_remove", 1), ("replace_one", 2)])
def test_the_threshold_s_mass_is_in_delta(relation: str, changes: int) -> None:
    """P(1 + Z >= t) = e^{−(t−1)/s}/(1 + e^{−1/s}), s = changes/ε; one or two keys that one data set alone has."""
    finder = category_finder(relation=relation)
    t, scale = finder.mechanism.threshold, changes / 1.0
    mass = math.exp(-(t - 1) / scale) / (1 + math.exp(-1 / scale))
    spent = accounting.delta(finder.event, 1.0, neighboring_relation=relation)
    assert spent <= 1e-5
    assert spent >= 1 - (1 - mass) ** changes - 1e-12
    assert 1 - (1 - math.exp(-(t - 2) / scale) / (1 + math.exp(-1 / scale))) ** changes > 1e-5  # one lower is too low


@pytest.mark.parametrize(("relation", "sensitivity"), [("add_remove", 1), ("replace_one", 2)])
def test_label_frequencies(relation: str, sensitivity: int) -> None:
    counter = LabelCounter(3, 0.5, relation)
    assert counter.mechanism.sensitivity == sensitivity
    labels = np.repeat([0, 1], [3000, 1000])
    found = counter.release(labels, ["x", "y", "z"], FixedNoise(0))
    assert found["classes"] == ["x", "y", "z"]
    assert np.abs(np.array(found["counts"]) - [3000, 1000, 0]).max() <= found["error"] < 100
    assert found["frequencies"] == pytest.approx([0.75, 0.25, 0.0], abs=0.03)
    assert sum(found["frequencies"]) == pytest.approx(1.0)
    nothing = LabelCounter(2, 1e4, relation).release(np.zeros(0, dtype=int), [0, 1], FixedNoise(0))
    assert nothing["frequencies"] == [0.5, 0.5]
