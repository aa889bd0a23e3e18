"""What cannot learn is refused, or said, before a record is read; what records do stays where it belongs."""

from __future__ import annotations

import json
import logging
import re
import warnings

import numpy as np
import pytest
import silent_checks as checks
import torch
from silent_checks import Small, arrays, dataset, trainer
from torch import nn

from dpml import PrivateData
from dpml.errors import DataError, ModelError
from dpml.sgd import ModelLoss, learnable
from dpml.sgd.batches import DatasetRows
from dpml.sgd.models import check_model


def test_what_cannot_learn_is_refused_before_data_are_read(tmp_path):
    checks.refused_before_data_are_read(tmp_path)


@pytest.mark.parametrize("name", checks.CANNOT_LEARN)
def test_plan_and_check_refuse_it_too(name):
    make, message = checks.CANNOT_LEARN[name]
    for look in (trainer(make()).plan, trainer(make()).check):
        with pytest.raises(ModelError, match=message):
            look(arrays())


def test_the_engine_refuses_it_with_nothing_charged_and_nothing_drawn():
    checks.refused_by_the_engine()


def test_a_loss_that_depends_on_no_parameter_is_refused():
    with pytest.raises(ModelError, match="do not depend on any trained parameter"):
        trainer(Small(), loss=lambda scores, y: scores.detach().square().sum(1)).check(arrays())
    with pytest.raises(ModelError, match="do not depend on any trained parameter"):
        trainer("mlp", loss=lambda scores, y: torch.zeros(len(scores))).check(arrays())


def test_the_model_is_left_as_it_was():
    model = checks.Remembers()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    with pytest.raises(ModelError, match="earlier records"):
        trainer(model).plan(arrays())
    assert model.calls == 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())


MOST_LIKELY_SILENT = {
    "constant": (lambda m, x: m.layer(x) * 0, "gradient is zero"),
    "sign": (lambda m, x: torch.sign(m.layer(x)), "gradient is zero"),
    "dead": (lambda m, x: torch.relu(m.layer(x) - 1e6), "gradient is zero"),
    "nan": (lambda m, x: m.layer(x) * torch.nan, "loss is not finite"),
    "gradient": (lambda m, x: (m.layer(x) * 0).sqrt(), "gradient is not finite"),
}


@pytest.mark.parametrize("name", MOST_LIKELY_SILENT)
def test_what_most_likely_cannot_learn_is_said_and_runs(name):
    """Other records may wake a ReLU, so it is no refusal."""
    change, message = MOST_LIKELY_SILENT[name]
    with pytest.warns(RuntimeWarning, match=f"every one of 64 made-up records the {message}"):
        trainer(Small(change)).check(arrays())


def test_plan_and_fit_say_it_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = trainer(Small(MOST_LIKELY_SILENT["dead"][0]))
        run.plan(arrays())
        run.fit(arrays())
        said = len([w for w in caught if "made-up records" in str(w.message)])
        trainer(Small(MOST_LIKELY_SILENT["dead"][0])).plan(arrays())
    again = len([w for w in caught if "made-up records" in str(w.message)])
    assert (said, again) == (1, 2), "once for a model, and of another model again"


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(1, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.lstm(x[..., None])[0][:, -1])


def zero_head():
    model = nn.Sequential(nn.Linear(checks.D, 4), nn.ReLU(), nn.Linear(4, 2))
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)
    return model


def frozen_below():
    model = nn.Sequential(nn.Linear(checks.D, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    return model


CAN_LEARN = {
    "plain": Small,
    "zero head": zero_head,
    "frozen below": frozen_below,
    "dropout": lambda: nn.Sequential(nn.Dropout(0.9), nn.Linear(checks.D, 2)),
    "half": lambda: Small().half(),
    "bfloat16": lambda: Small().bfloat16(),
    "half, gradients below its range": lambda: Small(lambda m, x: m.layer(x) * 1e-7).half(),
    "only float32": lambda: Small(lambda m, x: m.layer(x.float().to(torch.float32))),
    "large rows only": lambda: Small(lambda m, x: m.layer(torch.relu(x - 20.0)) + 0.0 * x[:, :2]),
    "logarithm": lambda: Small(lambda m, x: m.layer(x.log())),
    "recurrent": Lstm,
    "some weights behind": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(checks.D, 2)),
}


@pytest.mark.parametrize("name", CAN_LEARN)
def test_what_can_learn_is_let_be(name):
    trainer(CAN_LEARN[name]()).check(arrays())  # warnings are errors here


def test_a_regression_with_a_loss_of_ones_own_is_let_be():
    X = np.random.default_rng(0).normal(size=(checks.N, checks.D))
    data = PrivateData.from_arrays(X, X[:, 0], norm_bound=None, target_bounds=(-3, 3), n_declared=checks.N)
    model = nn.Linear(checks.D, 1)
    trainer(model, loss=lambda scores, y: (scores.reshape(-1) - y).square()).check(data)


class Branch(Small):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(2, 3)


def test_a_parameter_that_is_never_reached_is_named_once(caplog):
    with caplog.at_level(logging.WARNING):
        run = trainer(Branch())
        run.plan(arrays())
        run.fit(arrays())
    (line,) = [r.getMessage() for r in caplog.records if "no made-up record reaches" in r.getMessage()]
    assert "'spare.weight', 'spare.bias'" in line
    assert "requires_grad=False" in line
    assert "layer" not in line


def test_a_frozen_branch_is_not_named(caplog):
    model = Branch()
    model.spare.requires_grad_(False)
    with caplog.at_level(logging.WARNING):
        trainer(model).check(arrays())
    assert not caplog.records


def test_the_look_knows_no_record(caplog):
    """The same words for neighbours, for records without end, and for none at all."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(checks.N, checks.D))
    tables = (X, X[1:], X * np.nan, X * 1e300, X[:0])
    for change in (MOST_LIKELY_SILENT["dead"][0], checks.without_grad, None):
        said = []
        for table in tables:
            caplog.clear()
            with warnings.catch_warnings(record=True) as caught, caplog.at_level(logging.WARNING):
                warnings.simplefilter("always")
                try:
                    trainer(Small(change)).check(arrays(table))
                    error = ""
                except ModelError as refused:
                    error = str(refused)
            said.append((error, [str(w.message) for w in caught], caplog.messages))
        assert all(words == said[0] for words in said)


def test_spoilt_records_show_nowhere_but_in_private(tmp_path):
    checks.spoilt_records_show_nowhere(tmp_path)


def test_the_line_of_a_run_that_learned_nothing_has_level_info(caplog):
    with caplog.at_level(logging.INFO):
        trainer(Small()).fit(dataset(checks.raising))
    (line,) = [r for r in caplog.records if "every contribution" in r.getMessage()]
    assert line.levelno == logging.INFO
    assert "check_records" in line.getMessage()


@pytest.mark.parametrize("method", ["dp_sgd", "output"])
def test_a_run_that_learned_something_has_no_such_line(tmp_path, caplog, method):
    arguments = {} if method == "dp_sgd" else {"noise_multiplier": None, "steps": None, "expected_batch_size": None}
    data = arrays(norm_bound=1.0)
    with caplog.at_level(logging.INFO):
        trainer("logreg", method=method, run_dir=tmp_path / "run", **arguments).fit(data)
    assert "every contribution" not in caplog.text
    assert "warning" not in json.loads((tmp_path / "run/private/diagnostics.json").read_text("utf-8"))


def test_a_model_without_values_is_refused_by_name():
    with torch.device("meta"):
        model = nn.Linear(checks.D, 2)
    with pytest.raises(ModelError, match=r"'weight' is on the device 'meta'.*to_empty\(device='cpu'\)"):
        trainer(model)
    buffered = Small()
    buffered.register_buffer("mask", torch.ones(2, device="meta"))
    with pytest.raises(ModelError, match="'mask' is on the device 'meta'"):
        check_model(buffered)


def test_the_old_weight_norm_is_refused_by_name():
    old = nn.utils.weight_norm
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own word on it
        model = nn.Sequential(old(nn.Linear(checks.D, 4)), nn.Linear(4, 2))
    with pytest.raises(ModelError, match=r"layer '0' \(Linear\) has the old.*parametrizations\.weight_norm"):
        trainer(model)


class OddLength:
    def __init__(self, length):
        self.length = length

    def __len__(self):
        if isinstance(self.length, Exception):
            raise self.length
        return self.length

    def __getitem__(self, i):
        return np.zeros(checks.D), 0


@pytest.mark.parametrize("length", [OSError("no such disk"), -1, 2.5, None, "ten", 2**70])
@pytest.mark.parametrize("lazy", [True, False])
def test_a_dataset_without_a_length_is_a_clear_error(length, lazy):
    odd = OddLength(length)
    data = PrivateData.from_dataset(odd, n_declared=20, classes=[0, 1], feature_shape=checks.D, lazy=lazy)
    message = r"dataset \(OddLength\): len\(dataset\) raises \w+; __len__ must return"
    with pytest.raises(DataError, match=message):
        trainer(Small(), expected_batch_size=10).fit(data)
    with pytest.raises(DataError, match=message):
        len(DatasetRows(odd, (np.zeros(checks.D), np.zeros((), np.int64))))


def test_no_word_of_the_dataset_stands_in_the_message():
    with pytest.raises(DataError) as caught:
        len(DatasetRows(OddLength(OSError("row 17: Jane")), (np.zeros(checks.D), np.zeros((), np.int64))))
    assert not re.search("Jane|17", str(caught.value))


def test_models_whose_losses_raise_on_made_up_records_are_left_to_the_record_of_zeros():
    class Picky(Small):
        def forward(self, x):
            if bool((x != 0).any()):
                raise ValueError("not made for made-up records")
            return super().forward(x)

    trainer(Picky()).check(arrays())


class Indexed(Small):
    """Looks rows up in a small table by the size of the first entry."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(8, 2)

    def forward(self, x):
        return self.layer(x) + self.table(x[:, 0].clamp(min=0).long())


def test_indexes_out_of_range_on_made_up_records_are_no_fault():
    trainer(Indexed()).check(arrays())


def test_the_look_is_on_the_cpu_whatever_the_device(monkeypatch):
    """An index out of range would end the process's use of CUDA; only a record of zeros is tried there, if need be."""
    seen = []
    whole = learnable._look_at

    def watched(found, model, loss_fn, record):
        seen.append((next(model.parameters()).device.type, record[0].device.type, bool(record[0].any())))
        if seen[-1][0] == "cpu" and not on_cpu:
            raise RuntimeError("not on the CPU")
        whole(found, model, loss_fn, record)

    monkeypatch.setattr(learnable, "_look_at", watched)
    batch = torch.zeros((1, checks.D), device="meta"), torch.zeros(1, dtype=torch.int64, device="meta")
    on_cpu = True
    learnable.refuse_silent(Small(), ModelLoss(), batch)
    assert {kinds[:2] for kinds in seen} == {("cpu", "cpu")}
    on_cpu, seen[:] = False, []
    batch = torch.zeros((1, checks.D)), torch.zeros(1, dtype=torch.int64)
    learnable.refuse_silent(Small(), ModelLoss(), batch)
    assert not any(values for *_, values in seen[-4:])
