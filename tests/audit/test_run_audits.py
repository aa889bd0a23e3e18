"""``PrivateTrainer.audit``: what is trained, what is read off, what is written and what is refused.

The auditors' own validity is tested on nulls in ``test_two_worlds.py`` and ``test_one_run.py``; here are nulls of the
whole way, through training and scores.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_faults import ADASSP, DESCENT, LAPLACE, OBJECTIVE, OUTPUT, PURE, audited
from scipy import stats
from small_tables import people, write_people

from dpml import PrivateData, PrivateTrainer, audit
from dpml.accounting import verify
from dpml.audit import canary_runs, refits, runs
from dpml.audit.run_settings import RunAuditSettings, settled
from dpml.errors import ConfigError, RunFolderError
from dpml.mechanisms import FixedNoise

FALSE_ALARM = 0.999999
MLP: dict[str, Any] = {"model": "mlp", "hidden": (40,), "method": "dp_sgd", "expected_batch_size": 400, "steps": 4}


@pytest.fixture(scope="module")
def public() -> PrivateData:
    return PrivateData.synthetic(n=400, d=12)


@pytest.fixture
def private(tmp_path: Path) -> PrivateData:
    table, schema = write_people(tmp_path / "data", people(100))
    return PrivateData.from_table(table, schema=schema)


# ------------------------------------------------------------------------------------- what an attacker sees


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optimizer": "adam"},
        {"clipping": "adaptive"},
        {"clipping": "per_layer", "schedule": "cosine", "warmup_steps": 1},
        {"averaging": "ema", "weight_decay": 0.1, "clipping": "automatic"},
    ],
    ids=str,
)
@pytest.mark.parametrize("count", [60, 700])
def test_the_shares_are_those_of_the_noisy_gradients(
    options: dict[str, Any], count: int, public: PrivateData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever optimizer stands between: against the gradients themselves, kept by a spy in the engine."""
    from dpml.sgd import engine

    gradients, clips, readers = [], [], []
    real, made = engine.Stepper.gradient, canary_runs.StepReader

    def spy(self: Any, batch: Any) -> Any:
        clips.append(self.clip)
        found = real(self, batch)
        gradients.append(torch.cat([value.double().reshape(-1) for value in found.values()]).numpy().copy())
        return found

    def reader(*arguments: Any) -> Any:
        readers.append(made(*arguments))
        return readers[-1]

    monkeypatch.setattr(engine.Stepper, "gradient", spy)
    monkeypatch.setattr(canary_runs, "StepReader", reader)
    PrivateTrainer(epsilon=8.0, **MLP, **options).audit(public, canaries=count, on="stand_in")
    (found,) = readers
    for t, (gradient, clip) in enumerate(zip(gradients, clips, strict=True)):
        along = gradient[found.places] if found.directions is None else found.directions @ gradient
        assert (found.directions is None) == (count == 60)
        np.testing.assert_allclose(found.shares[t], along * 400 / clip, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("model", "classes"), [("logreg", [0, 1]), ("softmax", [0, 1, 2]), ("mlp", [0, 1, 2]), ("ridge", None)]
)
@pytest.mark.parametrize("dense", [False, True])
def test_a_canary_pulls_along_its_direction_with_norm_c_and_records_are_as_before(
    model: str, classes: list[int] | None, dense: bool
) -> None:
    """Per-example gradients by autograd, clipped by hand."""
    from dpml.planning import network_of
    from dpml.running import network_loss
    from dpml.sgd import per_example_loss

    kind: dict[str, Any] = {"target_bounds": (0.0, 1.0)} if classes is None else {"classes": classes}
    data = PrivateData.from_arrays(np.zeros((3, 4)), np.zeros(3), norm_bound=1.0, n_declared=50, **kind)
    trainer = PrivateTrainer(model, method="dp_sgd", epsilon=1.0, hidden=(3,) if model == "mlp" else (64,))
    network = network_of(trainer, data.public)
    loss = network_loss(trainer) or per_example_loss
    size = sum(p.numel() for p in network.parameters())
    rng, clip = np.random.default_rng(0), 0.7
    directions = audit.gradient_canaries(4, size, norm=1.0, seed=0) if dense else None
    places = np.arange(4) if dense else rng.permutation(size)[:4]
    signs = np.array([[1, -1]] * 4, dtype=np.int8)
    target, slope = canary_runs.slope_at_zero(network, loss, data.public)
    clock = canary_runs.Clock()
    module = canary_runs.CanaryModule(
        network, None if directions is None else torch.from_numpy(directions), torch.from_numpy(places),
        torch.from_numpy(signs), canary_runs.LENGTH * clip / slope, clock,
    )  # fmt: skip
    dtype = next(network.parameters()).dtype
    rows = torch.from_numpy(canary_runs.marked_rows(data.public, 4)).to(dtype)
    record = torch.from_numpy(rng.normal(size=(2, 4)) / 4).to(dtype)
    assert torch.equal(module(record), network(record))
    given = torch.full((1,), target, dtype=torch.int64 if classes is not None else dtype)
    for step, sign in ((0, 1.0), (1, -1.0)):
        clock.step = step
        for k in range(4):
            wanted = np.zeros(size)
            if directions is None:
                wanted[places[k]] = 1.0
            else:
                wanted = directions[k].astype(float)
            module.zero_grad()
            loss(module(torch.cat([record, rows[k : k + 1]]))[2:], given).sum().backward()
            gradient = torch.cat([p.grad.reshape(-1) for p in module.parameters()]).double().numpy()
            length = float(np.linalg.norm(gradient))
            assert length > 500 * clip
            np.testing.assert_allclose(gradient / length, sign * wanted, atol=1e-5)


def test_signs_cancel_what_stays_or_changes_evenly() -> None:
    signs = canary_runs.step_signs(300, 12)
    assert signs.shape == (300, 12)
    assert set(np.unique(signs)) == {-1, 1}
    time = np.arange(12.0)
    assert not (signs @ np.ones(12)).any()
    assert not (signs @ time).any()
    share = float((signs[:, 0] == signs[:, 4]).mean())
    assert abs(share - 0.5) < 0.15  # blocks have signs of their own; 5 standard deviations
    shares = 3.0 + 0.1 * time + signs  # a drifting background and a member
    found = canary_runs.signed_shares(shares, signs, records=True)
    assert np.allclose(found.reshape(300, 3, 4).mean(axis=2), 1.0)
    assert np.array_equal(canary_runs.signed_shares(shares, signs, records=False), shares * signs)


# ----------------------------------------------------------------------------------------- nulls and power


@pytest.mark.parametrize("on", ["stand_in", "records"])
def test_gradient_canaries_are_found_and_the_claim_stands(on: str, public: PrivateData) -> None:
    """At ε = 8 most guesses are right (70 % is far below what is seen), and the bound stays below ε."""
    found = PrivateTrainer(epsilon=8.0, **MLP).audit(public, canaries=400, on=on, confidence=FALSE_ALARM)
    assert found.result.rates["accuracy"] > 0.7
    assert found.result.epsilon_lower <= found.epsilon_upper
    assert not found.contradicted
    assert found.result.counts["canaries"] == 400


def test_guesses_of_other_coins_are_worth_nothing(public: PrivateData, monkeypatch: pytest.MonkeyPatch) -> None:
    """The null: the canaries that were trained are not those whose coins are guessed (|error| of 6 deviations)."""
    real = canary_runs.with_canaries

    def other(data: Any, rows: np.ndarray, labels: np.ndarray, *, alone: bool) -> Any:
        picked = np.random.default_rng(99).permutation(800)[: len(rows)]
        return real(data, canary_runs.marked_rows(data.public, 800)[picked], labels, alone=alone)

    monkeypatch.setattr(canary_runs, "with_canaries", other)
    found = PrivateTrainer(epsilon=8.0, **MLP).audit(
        public, canaries=800, guesses=800, on="stand_in", confidence=FALSE_ALARM
    )
    right = found.result.counts["correct"]
    assert stats.binomtest(right, 800, 0.5).pvalue > 1e-6
    assert found.result.epsilon_lower == 0.0


@pytest.mark.parametrize("case", [OUTPUT, PURE, OBJECTIVE, DESCENT, ADASSP, LAPLACE], ids=str)
def test_two_worlds_of_correct_methods_are_not_contradicted(case: Any) -> None:
    """False alarm 1e-6 each; ``tests/planted_bugs/test_run_audit_bugs.py`` has the power."""
    assert audited(case, 600, confidence=FALSE_ALARM).epsilon_lower <= 1.0


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@pytest.mark.parametrize(("model", "n_classes"), [("logreg", 2), ("logreg", 3), ("ridge", 1)])
def test_worlds_are_neighbours(relation: str, model: str, n_classes: int) -> None:
    worlds = refits.Worlds(None, model, "output", n_classes, 4, 2.0, 5, relation == "replace_one")
    (x0, y0), (x1, y1) = ((worlds.records(w).X, worlds.records(w).y) for w in (0, 1))
    assert len(y1) == 6
    assert len(y0) == (6 if relation == "replace_one" else 5)
    assert np.array_equal(y0[:5], y1[:5])
    assert y1[5] != y1[0]
    assert np.allclose(np.linalg.norm(np.vstack([x0, x1]), axis=1), 2.0)


def test_workers_share_the_runs(public: PrivateData) -> None:
    """Two processes: every run is made once, none has the noise of another."""
    plan = PrivateTrainer(method="output", epsilon=1.0).plan(public)
    worlds = refits.Worlds(plan.parameters, "logreg", "output", 2, public.public.n_features, 1.0, 2, False)
    told: list[int] = []
    out, inside = refits.all_scores(worlds, 501, 2, lambda done, runs: told.append(done))
    assert (len(out), len(inside)) == (251, 250)
    assert len(np.unique(np.concatenate([out, inside]))) == 501
    assert told[-1] == 501


# ------------------------------------------------------------------------------------------- what is written


def test_a_charged_audit_is_a_run_that_says_what_its_model_holds(public: PrivateData, tmp_path: Path) -> None:
    trainer = PrivateTrainer(epsilon=4.0, **MLP, run_dir=tmp_path / "run")
    found = trainer.audit(public, canaries=100)
    release = tmp_path / "run/release"
    record = json.loads((release / "audit.json").read_text("utf-8"))
    assert record == json.loads(json.dumps(found.to_dict()))
    assert found.charged
    assert (release / "tradeoff.png").read_bytes()[:4] == b"\x89PNG"
    assert verify(tmp_path / "run").ok
    result = json.loads((release / "result.json").read_text("utf-8"))
    assert any("AUDIT: half of 100 canaries" in text for text in result["assumptions"])
    assert record["epsilon_upper"] >= result["epsilon"]
    assert record["delta"] == result["delta"]
    assert not any("second" in key or "time" in key for key in record), "a duration depends on records"
    charged = [json.loads(line) for line in (release / "ledger.jsonl").read_text("utf-8").splitlines()]
    assert sum(line.get("count", 0) for line in charged if line["kind"] == "charge") == 4


def test_the_report_reads_it(public: PrivateData, tmp_path: Path) -> None:
    from dpml.report.audit_record import read_audit

    PrivateTrainer(epsilon=4.0, **MLP, run_dir=tmp_path / "run").audit(public, canaries=100)
    record, fault = read_audit(tmp_path / "run/release/audit.json")
    assert fault is None
    assert record is not None
    assert len(record.points) == len(runs.RATES)


def test_a_private_table_is_not_touched_unless_asked(private: PrivateData, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(PrivateData, "load", _refuse_unless_made(PrivateData.load))
    arguments: dict[str, Any] = {"model": "logreg", "method": "dp_sgd", "steps": 4, "expected_batch_size": 50}
    trainer = PrivateTrainer(
        epsilon=4.0, **arguments, run_dir=tmp_path / "audit", dataset_ledger=tmp_path / "cap", dataset_epsilon=1e-3,
        dataset_delta=1e-9,
    )  # fmt: skip
    found = trainer.audit(private, config="seed: 0\n")
    assert found.trained_on == "canaries alone"
    assert not found.charged
    assert sorted(p.name for p in (tmp_path / "audit").iterdir()) == ["audit.json", "config.yaml", "tradeoff.png"]
    assert not (tmp_path / "cap").exists()
    with pytest.raises(RunFolderError, match="is not empty"):
        trainer.audit(private)
    found = PrivateTrainer(method="output", epsilon=1.0).audit(private, runs=100)
    assert found.trained_on == "two made-up data sets"


def _refuse_unless_made(real: Any) -> Any:
    def load(self: PrivateData, *arguments: Any, **options: Any) -> Any:
        assert self.public.name.startswith("stand-in"), "a record was read"
        return real(self, *arguments, **options)

    return load


def test_records_of_a_private_table_are_charged_to_its_cap(private: PrivateData, tmp_path: Path) -> None:
    from dpml.errors import BudgetExceededError

    arguments: dict[str, Any] = {
        "model": "logreg", "method": "dp_sgd", "steps": 4, "expected_batch_size": 50, "epsilon": 0.7,
        "dataset_ledger": tmp_path / "cap", "dataset_epsilon": 1.0, "dataset_delta": 1e-3,
    }  # fmt: skip
    PrivateTrainer(**arguments).audit(private, on="records", canaries=20)
    with pytest.raises(BudgetExceededError):
        PrivateTrainer(**arguments).audit(private, on="records", canaries=20)


@pytest.mark.parametrize("canary", ["input", "mislabelled"])
@pytest.mark.parametrize("method", ["dp_sgd", "objective"])
def test_black_box_canaries(method: str, canary: str, public: PrivateData) -> None:
    options = {"steps": 4, "expected_batch_size": 100} if method == "dp_sgd" else {}
    found = PrivateTrainer(method=method, epsilon=4.0, **options).audit(
        public, game="one_run", access="black_box", canary=canary, canaries=60, confidence=FALSE_ALARM
    )
    assert found.trained_on == "records and canaries"
    assert not found.contradicted
    assert "the final model" in found.attack


def test_without_noise_the_final_model_gives_canaries_away(public: PrivateData, monkeypatch: Any) -> None:
    """Power of the black box: with almost no noise and few others, three quarters are right at least."""
    from dpml.erm import output

    real = output.add_gaussian
    monkeypatch.setattr(
        output, "add_gaussian", lambda theta, **given: real(theta, **(given | {"noise_multiplier": 1e-6}))
    )
    data = PrivateData.from_arrays(np.zeros((1, 200)), [0], norm_bound=1.0, classes=[0, 1], n_declared=1000)
    found = PrivateTrainer(method="output", epsilon=1.0, delta=1e-4).audit(
        data, game="one_run", on="stand_in", canaries=60, guesses=20
    )
    assert found.result.rates["accuracy"] >= 0.75
    assert found.contradicted or found.result.epsilon_lower > 0.2


def test_the_claimed_curve_lies_on_the_claim(public: PrivateData) -> None:
    plan = PrivateTrainer(method="output", epsilon=1.0).plan(public)
    alpha, beta = (np.array(part) for part in runs.claimed_curve(plan))
    assert beta[0] >= 1 - plan.guarantee.delta - 1e-9
    assert np.all(beta >= 1 - plan.guarantee.delta - np.exp(1.0) * alpha - 1e-9)
    assert np.all(np.diff(beta) <= 1e-12)


def test_points_are_limits_that_hold() -> None:
    """200 pictures of N(0, 1) and N(1, 1): all five points of one hold together in 95 %; false alarm below 1e-6."""
    rng, bad = np.random.default_rng(5), 0
    for _ in range(200):
        points = runs.attacked_points(rng.normal(size=400), rng.normal(1.0, 1.0, 400), 1, 0.95)
        bad += any(beta < stats.norm.cdf(stats.norm.isf(min(alpha, 1 - 1e-12)) - 1.0) for alpha, beta in points)
    assert bad <= 30  # P(Binomial(200, 0.05) > 30) = 1e-8


# ------------------------------------------------------------------------------------------------- refusals

FACTS: dict[str, Any] = {
    "method": "dp_sgd",
    "neighboring_relation": "add_remove",
    "is_public": False,
    "n_parameters": 50,
}


@pytest.mark.parametrize(
    ("asked", "facts", "text"),
    [
        ({}, {"method": "nonprivate"}, "claims no epsilon"),
        ({}, {"processes": 2}, "without torchrun"),
        ({}, {"shares": True}, "shares: an audit"),
        ({}, {"neighboring_relation": "replace_one"}, "neighboring_relation = 'replace_one'"),
        ({}, {"sampling": "fixed_size"}, "sampling = 'fixed_size'"),
        ({"game": "three"}, {}, "game"),
        ({"game": "two_world"}, {}, "python -m dpml.audit dp_sgd"),
        ({"access": "white_box"}, {"method": "output"}, "access = 'white_box'"),
        ({"game": "one_run", "access": "white_box"}, {"method": "output"}, "releases its last model only"),
        ({"game": "two_world", "on": "records"}, {"method": "output"}, "on = 'records'"),
        ({"canary": "gradient"}, {"method": "output"}, "canary = 'gradient'"),
        ({"canary": "input"}, {}, "canary = 'input'"),
        ({"canary": "gradient", "access": "black_box"}, {}, "canary = 'gradient'"),
        ({"canary": "mislabelled", "access": "black_box"}, {}, "no one's records"),
        ({"canaries": 1}, {}, "canaries"),
        ({"canaries": 1000}, {"n_parameters": 10**6, "x": 0}, None),
        ({"canaries": 2000}, {"n_parameters": 10**3}, None),
        ({"canaries": 10**6}, {"n_parameters": 10**3}, "canaries = 1000000"),
        ({"guesses": 1}, {}, "guesses"),
        ({"guesses": 51, "canaries": 50}, {}, "guesses"),
        ({"analysis": "none"}, {}, "analysis"),
        ({"analysis": "f_dp"}, {"method": "output"}, "analysis"),
        ({"confidence": 1.0}, {}, "confidence"),
        ({"runs": 10}, {"method": "output"}, "runs"),
        ({"workers": -1}, {}, "workers"),
    ],
)
def test_what_cannot_be_audited_says_why(asked: dict[str, Any], facts: dict[str, Any], text: str | None) -> None:
    facts = FACTS | {key: value for key, value in facts.items() if key != "x"}
    if text is None:
        assert settled(RunAuditSettings(**asked), **facts).game == "one_run"
        return
    with pytest.raises(ConfigError, match=text):
        settled(RunAuditSettings(**asked), **facts)


def test_what_auto_means() -> None:
    found = settled(RunAuditSettings(), **FACTS)
    assert (found.game, found.access, found.canary, found.on) == ("one_run", "white_box", "gradient", "stand_in")
    assert (found.canaries, found.guesses, found.analysis) == (100, 20, "binomial")
    assert settled(RunAuditSettings(), **FACTS | {"is_public": True, "n_parameters": 300}).on == "records"
    assert settled(RunAuditSettings(), **FACTS | {"n_parameters": 300}).canaries == 300
    found = settled(RunAuditSettings(), **FACTS | {"method": "objective", "is_public": True})
    assert (found.game, found.access, found.canary, found.on) == ("two_world", "black_box", "input", "stand_in")


def test_unknown_settings_are_refused(public: PrivateData) -> None:
    with pytest.raises(ConfigError, match="Did you mean guesses"):
        PrivateTrainer().audit(public, guesess=3)


def test_noise_that_is_not_secret_is_named(public: PrivateData) -> None:
    found = PrivateTrainer(epsilon=4.0, **MLP, noise_source=FixedNoise(1)).audit(public, canaries=50)
    assert any("NOT PRIVATE" in text for text in found.plan.guarantee.assumptions)
