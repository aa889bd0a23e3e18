"""What resume compares and what it refuses: before anything is charged, and before anything is drawn."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from resume_checks import (
    FIXED,
    STEPS,
    checkpoint_path,
    edit_arguments,
    goes_on,
    killed_run,
    one_value,
    refused,
    table,
)
from torch import nn

from dpml import PrivateData, PrivateTrainer, planning, resuming, runs, sgd
from dpml.mechanisms import FixedNoise


def own_module(hidden=4, activation=nn.Tanh):
    return nn.Sequential(nn.Linear(4, hidden), activation(), nn.Linear(hidden, 2))


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    root = tmp_path_factory.mktemp("killed")
    killed_run(root / "mlp")
    killed_run(root / "own", model=own_module(), hidden=(64,))
    return root


@pytest.fixture
def run(originals, tmp_path):
    return Path(shutil.copytree(originals / "mlp", tmp_path / "run"))


@pytest.fixture
def own(originals, tmp_path):
    return Path(shutil.copytree(originals / "own", tmp_path / "own"))


# -- plan and arguments -----------------------------------------------------------------------------------------------
CHANGES = [
    ({"expected_batch_size": 16}, r"parameters.expected_batch_size: 15 → 16"),
    ({"expected_batch_size": 16}, r"parameters.sample_rate: 0.25 → 0.26"),
    ({"noise_multiplier": 2.5}, r"noise_multiplier: 2.0 → 2.5"),
    ({"max_grad_norm": 0.5}, r"max_grad_norm: 1.0 → 0.5"),
    ({"steps": 52}, r"steps: 48 → 52"),
    ({"checkpoint_every": 5}, r"checkpoint_every: 4 → 5"),
    ({"optimizer": "adamw"}, r"optimizer: 'adam' → 'adamw'"),
    ({"betas": [0.9, 0.99]}, r"betas: \[0.9, 0.999\] → \[0.9, 0.99\]"),
    ({"bias_correction": False}, r"bias_correction: True → False"),
    ({"optimizer": "adamw", "weight_decay": 0.01}, r"weight_decay: 0.0 → 0.01"),
    ({"learning_rate": 0.06}, r"learning_rate: 0.05 → 0.06"),
    ({"schedule": "cosine"}, r"schedule: 'linear' → 'cosine'"),
    ({"warmup_steps": 3}, r"warmup_steps: 0 → 3"),
    ({"averaging": "tail"}, r"averaging: 'ema' → 'tail'"),
    ({"averaging_share": 0.25}, r"averaging_share: 0.5 → 0.25"),
    ({"clipping": "per_layer"}, r"clipping: 'flat' → 'per_layer'"),
    ({"clipping": "adaptive", "count_noise": 3.0}, r"count_noise: None → 3.0"),
    ({"neighboring_relation": "replace_one"}, r"neighboring_relation: 'add_remove' → 'replace_one'"),
    ({"neighboring_relation": "replace_one", "sampling": "fixed_size"}, r"sampling: 'poisson' → 'fixed_size'"),
    ({"delta": 2e-3}, r"delta: 0.001 → 0.002"),
    ({"accountant": "rdp"}, r"accountant: 'best' → 'rdp'"),
    ({"seed": 1}, r"seed: 0 → 1"),
    ({"assumptions": ["households are one record"]}, r"assumptions"),
]


@pytest.mark.parametrize(("changes", "match"), CHANGES)
def test_a_changed_argument_is_refused_with_the_difference(run, changes, match):
    edit_arguments(run, **changes)
    assert "nothing was charged" in refused(run, table(), match)


def test_a_configuration_that_changed_meanwhile_is_refused(run):
    """What the command line can say: the arguments as they are composed now."""
    assert goes_on(run, configured=PrivateTrainer(**FIXED))[0] == list(range(13, STEPS + 1))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"hidden": (5,)}, r"hidden: \[4\] → \[5\]"),
        ({"expected_batch_size": 20}, r"expected_batch_size: 15 → 20"),
        ({"noise_multiplier": None, "epsilon": 2.0}, r"noise_multiplier: 2.0 → None"),
        ({"compare_nonprivate": False}, r"compare_nonprivate: True → False"),
        ({"excess_risk": 0.1}, r"excess_risk: 0.05 → 0.1"),
    ],
)
def test_every_changed_argument_of_the_configuration_is_named(run, changes, match):
    refused(run, table(), match, configured=PrivateTrainer(**{**FIXED, **changes}))


def test_device_and_micro_batches_may_change(run):
    configured = PrivateTrainer(**FIXED, micro_batch_size=3, device="cpu")
    with pytest.MonkeyPatch.context() as patch:
        sizes, real = [], sgd.engine.Clipper.sums

        def clip(self, batch, bound, micro, *rest):
            sizes.append(micro)
            return real(self, batch, bound, micro, *rest)

        patch.setattr(sgd.engine.Clipper, "sums", clip)
        seen, result = goes_on(run, configured=configured, micro_batch_size=3, device="cpu")
    assert seen == list(range(13, STEPS + 1))
    assert set(sizes) == {3}
    assert result.plan.parameters.micro_batch_size is None  # the plan is the ledger's


def test_a_run_of_another_device_goes_on_here(tmp_path, monkeypatch):
    """Started on CUDA (said to be), resumed on the CPU; the records of the run say what the ledger says."""
    with monkeypatch.context() as patch:
        patch.setattr(planning, "device_of", lambda _: "cuda")
        killed_run(tmp_path / "run")
    _, result = goes_on(tmp_path / "run")
    assert result.plan.device == "cuda"
    assert json.loads((tmp_path / "run/result.json").read_text())["plan"]["device"] == "cuda"


def test_workers_may_change():
    """They stand in no plan, and the HMAC is of the items, whoever reads them."""
    found = []
    for workers in (0, 2):
        X, y = np.zeros((20, 3)), np.arange(20) % 2
        data = PrivateData.from_dataset(
            list(zip(X, y, strict=True)), n_declared=20, classes=[0, 1], feature_shape=3, lazy=True, workers=workers
        )
        run = PrivateTrainer("mlp", noise_multiplier=2.0, delta=1e-3, steps=4, expected_batch_size=5)
        records = data.load(FixedNoise(0), lazy=True)
        assert records.X.workers == workers
        found.append((runs.records_mac(b"key", records), json.dumps(run.plan(data).to_dict())))
    assert found[0] == found[1]


def leaves(record, path=()):
    for key, value in record.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def test_every_entry_of_a_plan_is_compared_but_for_two():
    plan = json.loads(json.dumps(PrivateTrainer(**FIXED).plan(table()).to_dict()))
    names = set()
    for path, value in leaves(plan):
        changed = copy.deepcopy(plan)
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        if isinstance(value, bool) or not isinstance(value, int | float):
            inner[path[-1]] = "something else"
        else:
            inner[path[-1]] = value + (1 if isinstance(value, int) else 1e-6 * max(value, 1e-3))
        found = runs.plan_differences(plan, changed)
        if found:
            assert len(found) == 1
            assert found[0].startswith(".".join(path) + ":")
        else:
            names.add(".".join(path))
    assert names == {"device", "parameters.micro_batch_size"}
    assert runs.plan_differences(plan, plan) == []


def test_counts_are_compared_exactly_and_floats_up_to_rounding():
    assert runs.plan_differences({"n": 10**9}, {"n": 10**9 + 1}) == ["n: 1000000000 → 1000000001"]
    assert runs.plan_differences({"x": 0.1 + 0.2, "l": [0.3]}, {"x": 0.3, "l": [0.1 + 0.2]}) == []
    assert runs.plan_differences({"x": 1.0}, {"x": 1.0 + 1e-8}) != []
    assert runs.plan_differences({"x": True}, {"x": 1}) == ["x: True → 1"]
    assert runs.plan_differences({"x": 1}, {}) == ["x: 1 → None"]


# -- data -------------------------------------------------------------------------------------------------------------
def one_label(X, y):
    y[17] = 1 - y[17]
    return X, y


@pytest.mark.parametrize(
    "data",
    [
        lambda: table(change=one_value),
        lambda: table(change=one_label),
        lambda: table(n=61),
        lambda: table(n=59),
        lambda: table(change=lambda X, y: (X[::-1], y[::-1])),
        lambda: table(change=lambda X, y: (np.vstack([X, X[:1]]), np.append(y, y[0]))),
        lambda: table(X_test=np.zeros((2, 3)), y_test=[0, 1]),
    ],
)
def test_changed_records_are_refused(run, data):
    refused(run, data(), "very same records")


@pytest.mark.parametrize(
    ("declared", "match"),
    [
        ({"n_declared": 61}, r"data.n_declared: 60 → 61"),
        ({"norm_bound": 2.0}, r"data.norm_bound: 1.0 → 2.0"),
        ({"classes": [1, 0]}, r"data.classes: \[0, 1\] → \[1, 0\]"),
        ({"add_constant": False}, r"data.n_features: 4 → 3"),
        ({"is_public": True}, r"data.is_public: False → True"),
    ],
)
def test_changed_declarations_are_refused(run, declared, match):
    refused(run, table(**declared), match)


@pytest.mark.parametrize("name", ["config.yaml", "schema.json"])
def test_what_was_published_at_the_start_must_still_stand_there(run, name):
    path = run / "release" / name
    whole = path.read_bytes()
    path.write_bytes(whole + b"\n")
    refused(run, table(), rf"files published at the start .*{name}: ")
    path.unlink()
    refused(run, table(), rf"{name}: .* → 'missing'")
    path.write_bytes(whole)
    goes_on(run)


# -- model ------------------------------------------------------------------------------------------------------------
def test_other_layers_than_the_runs_are_refused(run):
    edit_arguments(run, hidden=[5])  # the rate is given, so that no number of the plan changes
    refused(run, table(), r"layers.*out_features=4.* → .*out_features=5")


class Named(nn.Sequential):
    pass


def frozen():
    model = own_module()
    model[0].bias.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (lambda: own_module(hidden=5), r"parameters.0.weight: '\[4, 4\] float32' → '\[5, 4\] float32'"),
        (lambda: own_module(activation=nn.ReLU), r"layers.1: 'Tanh\(\)' → 'ReLU\(\)'"),
        (lambda: own_module().double(), r"parameters.0.bias: '\[4\] float32' → '\[4\] float64'"),
        (frozen, r"parameters.0.bias: .*frozen"),
        (lambda: Named(*own_module()), r"model: 'Sequential' → 'Named'"),
    ],
)
@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_another_module_is_refused_also_before_the_first_checkpoint(own, model, match, with_checkpoint):
    if not with_checkpoint:
        checkpoint_path(own).unlink()
    refused(own, table(), match, model=model())


def test_the_same_module_goes_on_and_none_is_asked_for(own):
    refused(own, table(), r"pass model=YourModule\(\)")
    refused(own, table(), "loss must be given", model=own_module(), loss=lambda logits, y: logits.sum(1))
    seen, _ = goes_on(own, model=own_module())
    assert seen == list(range(13, STEPS + 1))


def test_a_description_has_no_weights_and_no_addresses():
    class Odd(nn.Linear):
        def extra_repr(self):
            return f"kept={object()}"

    text = json.dumps(resuming.network_description(nn.Sequential(Odd(2, 2), nn.Linear(2, 1))))
    assert "0x" not in text
    assert json.dumps(resuming.network_description(nn.Sequential(Odd(2, 2), nn.Linear(2, 1)))) == text
