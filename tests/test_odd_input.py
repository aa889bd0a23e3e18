"""Odd input through the public interface: refused by its type or shape, before a cap is charged or a folder made."""

from __future__ import annotations

import inspect
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpml import PrivateData, PrivateTrainer, sgd
from dpml.accounting import DatasetLedger
from dpml.errors import ConfigError, DataError, LedgerError, ModelError, RunFolderError, shown
from dpml.mechanisms import FixedNoise

X = np.random.default_rng(0).normal(size=(60, 5))
Y = (X[:, 0] > 0).astype(int)
ODD_TENSORS = {
    "sparse": torch.tensor(X).to_sparse(),
    "meta": torch.empty(60, 5, device="meta"),
    "float8": torch.tensor(X).to(torch.float8_e5m2),
}
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's: in beta state
    ODD_TENSORS["csr"] = torch.tensor(X).to_sparse_csr()


def data_of(rows: Any = X, labels: Any = Y) -> PrivateData:
    return PrivateData.from_arrays(rows, labels, norm_bound=3.0, classes=[0, 1], n_declared=60)


def trainer_of(folder: Path, **changes: Any) -> PrivateTrainer:
    given = {
        "epsilon": 1.0, "method": "dp_sgd", "expected_batch_size": 20, "steps": 2, "run_dir": folder / "run",
        "dataset_ledger": folder / "cap.jsonl", "dataset_epsilon": 5.0, "dataset_delta": 1e-2,
    }  # fmt: skip
    return PrivateTrainer(**{**given, **changes})


def untouched(folder: Path) -> bool:
    """No run folder, no charge."""
    return not (folder / "run").exists() and not (folder / "cap.jsonl").exists()


@pytest.mark.parametrize(
    "changes",
    [{"model": "logreg"}, {"model": "softmax"}, {"model": "mlp"}, {"method": "objective"}, {"method": "dp_gd"}],
)
def test_rows_of_several_axes_are_refused_by_a_built_in_model(changes: dict[str, Any], tmp_path: Path) -> None:
    if changes.get("method", "dp_sgd") != "dp_sgd":
        changes = {**changes, "expected_batch_size": None, "steps": None}
    data, trainer = data_of(X[:, :, None]), trainer_of(tmp_path, **changes)
    for use in (trainer.plan, trainer.check, trainer.fit):
        with pytest.raises(ConfigError, match=r"model = .*\(5, 1\).*reshape"):
            use(data)
    assert untouched(tmp_path)


@pytest.mark.parametrize("kind", ODD_TENSORS)
def test_tensors_that_numpy_cannot_hold_are_refused_at_once(kind: str) -> None:
    with pytest.raises(DataError, match=r"X is a tensor .*torch.*to_dense"):
        data_of(ODD_TENSORS[kind])
    with pytest.raises(DataError, match=r"y is a tensor .*to_dense"):
        data_of(X, ODD_TENSORS[kind])


def test_complex_tensors_are_refused_at_once() -> None:
    with pytest.raises(DataError, match="complex64"):
        data_of(torch.tensor(X).to(torch.complex64).conj())


def test_tensors_with_a_history_and_of_half_precision_are_their_numbers() -> None:
    for rows in (torch.tensor(X, requires_grad=True), torch.tensor(X).bfloat16()):
        labels = torch.tensor(Y * 1.0, requires_grad=True)
        found = data_of(rows, labels).load(np.random.default_rng(0))
        wanted = data_of(rows.detach().float().numpy() if rows.dtype == torch.bfloat16 else X).load(
            np.random.default_rng(0)
        )
        assert (found.X == wanted.X).all()
        assert (found.y == wanted.y).all()


def test_masked_arrays_are_refused(tmp_path: Path) -> None:
    """Their masks would be dropped, and what they hide be used."""
    with pytest.raises(DataError, match=r"X is a masked array.*filled"):
        data_of(np.ma.masked_array(X, mask=X > 1))
    with pytest.raises(DataError, match=r"y is a masked array"):
        data_of(X, np.ma.masked_array(Y, mask=Y > 0))


@pytest.mark.parametrize("wrong", [None, X, "table.csv"])
def test_data_that_declare_nothing_are_refused(wrong: Any, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    for use in (trainer.plan, trainer.check, trainer.fit, trainer.check_records):
        with pytest.raises(ConfigError, match=r"data = .*PrivateData.*from_arrays"):
            use(wrong)
    assert untouched(tmp_path)


def test_a_ledger_in_a_missing_folder_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, dataset_ledger=tmp_path / "none" / "cap.jsonl")
    with pytest.raises(LedgerError, match=r"cap\.jsonl: No such file.*in a folder that exists"):
        trainer.fit(data_of())
    assert untouched(tmp_path)
    with pytest.raises(LedgerError, match="in a folder that exists"):
        DatasetLedger(tmp_path, 1.0, 1e-5).check("run", 0.5, 1e-6)
    both = tmp_path / "made" / "with the run"
    trainer_of(both).fit(data_of())
    assert (both / "cap.jsonl").is_file()


@pytest.mark.parametrize(
    ("run", "cap"),
    [("a", "a/cap"), ("a", "a/private/cap"), ("x/../a/run", "a/cap"), ("a/run", "a/../a/cap"), ("a/b/run", "a/cap")],
)
def test_a_ledger_in_a_folder_that_the_run_makes(run: str, cap: str, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    trainer_of(tmp_path, run_dir=tmp_path / run, dataset_ledger=f"{tmp_path}/{cap}").fit(data_of())
    assert (tmp_path / cap).is_file()


@pytest.mark.parametrize("exists", [True, False])
def test_a_ledger_that_cannot_be_written_is_refused_before_a_folder_is_made(
    exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever runs the tests: root may write anywhere."""

    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    if exists:
        DatasetLedger(tmp_path / "cap.jsonl", 5.0, 1e-2).reserve("another", 0.5, 1e-6, None)
    trainer, before = trainer_of(tmp_path), sorted(tmp_path.iterdir())
    monkeypatch.setattr(Path if exists else "tempfile.TemporaryFile", *(["open", refused] if exists else [refused]))
    with pytest.raises(LedgerError, match=r"cannot open the data set ledger .*cap\.jsonl: Permission denied"):
        trainer.fit(data_of())
    monkeypatch.undo()
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("kind", ["sparse", "csr", "meta", "complex"])
def test_tensor_datasets_that_numpy_cannot_hold_are_refused(kind: str) -> None:
    """By their types: every item would be left out, and all of the budget spent on noise."""
    rows = torch.tensor(X).to(torch.complex64) if kind == "complex" else ODD_TENSORS[kind]
    dataset = torch.utils.data.TensorDataset(rows, torch.zeros(60, dtype=torch.int64, device=rows.device))
    with pytest.raises(DataError, match=r"the first tensor of dataset (is a tensor that numpy|does not hold numbers)"):
        PrivateData.from_dataset(dataset, classes=[0, 1], n_declared=60, norm_bound=3.0)


def test_items_of_bfloat16_are_their_numbers() -> None:
    rows = torch.tensor(X).bfloat16()
    dataset = torch.utils.data.TensorDataset(rows, torch.tensor(Y))
    data = PrivateData.from_dataset(dataset, classes=[0, 1], n_declared=60, norm_bound=None)
    assert np.array_equal(data.load(FixedNoise(0)).X, rows.double().numpy())


def test_arguments_out_of_place_and_of_the_wrong_kind() -> None:
    with pytest.raises(ConfigError, match=r"hidden = \(3,\).*logreg.*mlp"):
        PrivateTrainer(model="logreg", hidden=[3])
    with pytest.raises(ConfigError, match="hidden = '64'"):
        PrivateTrainer(model="mlp", hidden="64")
    with pytest.raises(ModelError, match=r"the class Linear .*instance: Linear\("):
        PrivateTrainer(model=torch.nn.Linear, method="dp_sgd")  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=r"model = None is not allowed.*torch.nn.Module"):
        PrivateTrainer(model=None, method="dp_sgd")  # type: ignore[arg-type]


def losses(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


BATCH = torch.tensor(X).float(), torch.tensor(Y)


@pytest.mark.parametrize("wrong", [None, "loss", 3])
def test_a_loss_that_is_no_function_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"loss_fn = .*loss_fn\(model, batch\)"):
        sgd.clipped_gradient(torch.nn.Linear(5, 2), wrong, BATCH, 1.0)


@pytest.mark.parametrize("engine", ["auto", "per_example"])
def test_a_loss_that_no_weight_reaches_is_warned_of(engine: str) -> None:
    model = torch.nn.Linear(5, 2)
    for loss in (
        lambda model, batch: losses(model, batch).detach(),
        lambda model, batch: (model(batch[0])[:, 0] > 0).long(),
        lambda model, batch: batch[0].sum(1),
    ):
        with pytest.warns(RuntimeWarning, match="does not depend on the model's trained parameters"):
            sums, _ = sgd.clipped_gradient(model, loss, BATCH, 1.0, engine=engine)
        assert not any(value.any() for value in sums.values())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sgd.clipped_gradient(model, losses, BATCH, 1.0, engine=engine)
        sgd.clipped_gradient(model, lambda model, batch: model.weight.sum() * batch[0].sum(1), BATCH, 1.0)


def test_batches_and_sizes_that_are_refused_say_what_they_are() -> None:
    model = torch.nn.Linear(5, 2)
    for batch, what in (
        ((X, Y), "holds a ndarray"), (None, "holds a NoneType"), ((), "holds no tensor"),
        ((BATCH[0], torch.tensor(1)), "holds a tensor without axes"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=what):
            sgd.clipped_gradient(model, losses, batch, 1.0)
    with pytest.raises(ConfigError, match=r"micro_batch_size = .*from 1 to [\d,]+"):
        sgd.clipped_gradient(model, losses, BATCH, 1.0, 10**12)


@pytest.mark.parametrize("positions", [1, 3])
@pytest.mark.parametrize("size", [1e30, 1e35, 2.9e38])
@pytest.mark.parametrize("bound", [1.05e-6, 1.08e-6, 1e-5, 1e-3, 1.0])
def test_no_contribution_is_longer_than_c_at_the_end_of_float32(positions: int, size: float, bound: float) -> None:
    """Inputs of 10³⁸ times derivatives of 10⁻²⁶: the product c·b is smaller than float32 holds with all its digits."""
    model = torch.nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.fill_(-60.0)
    rows = torch.full((1, positions, 1), size)
    rows[:, 1:] = 0.0

    def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        return torch.nn.functional.softplus(model(batch)).sum((1, 2))

    for engine in ("auto", "per_example"):
        sums, norms = sgd.clipped_gradient(model, loss, rows, bound, engine=engine)
        assert np.isfinite(float(norms[0]))
        assert float(sum(value.square().sum() for value in sums.values())) ** 0.5 <= bound * (1 + 1e-5)


@pytest.mark.parametrize("positions", [1, 2])
@pytest.mark.parametrize(("size", "slope", "bound"), [(1e-40, 1e37, 1.0), (1e-34, 1e31, 1e6), (1e-38, 1e35, 100.0)])
def test_factors_above_one_do_not_overflow(positions: int, size: float, slope: float, bound: float) -> None:
    """Automatic clipping multiplies a short gradient by up to 100 C: of a tiny input and a huge derivative, say."""
    model = torch.nn.Linear(2, 1, bias=False)
    rows = torch.zeros(3, positions, 2)
    rows[:, :, 0] = size

    def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        return slope * model(batch).sum((1, 2))

    for engine in ("auto", "per_example"):
        sums, _ = sgd.clipped_gradient(model, loss, rows, bound, clipping="automatic", engine=engine)
        assert float(sums["weight"].norm()) <= 3 * bound


@pytest.mark.parametrize("bound", [0.4, 1.0, 400.0])
@pytest.mark.parametrize("size", [1e31, 2.5e31, 1e34])
def test_positions_that_cancel_stay_together_at_the_end_of_float32(size: float, bound: float) -> None:
    """Products c·b on both sides of what float32 holds well: the record's positions are left out together or not."""
    model = torch.nn.Linear(64, 64, bias=False)
    torch.nn.init.zeros_(model.weight)
    rows = torch.zeros(1, 2, 64)
    rows[:, :, 0] = size

    def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        return (model(batch)[:, :, 0] * torch.tensor([1.02e-30, -0.98e-30])).sum(1)

    for engine in ("auto", "per_example"):
        sums, norms = sgd.clipped_gradient(model, loss, rows, bound, engine=engine)
        expected = min(bound, 0.04e-30 * size)
        assert float(norms[0]) == pytest.approx(0.04e-30 * size, rel=1e-4)
        assert float(sums["weight"].square().sum()) ** 0.5 == pytest.approx(expected, rel=1e-4)


def test_resuming_a_run_that_has_lost_a_file_says_which(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(*_: Any) -> None:
        raise Stop

    for lost, said in (
        ("private/resume.json", r"has lost private/resume\.json.* 1 charges stay spent\. Start a new run"),
        ("release/ledger.jsonl", r"ledger\.jsonl is missing: .*what is spent\. Start a new run"),
    ):
        folder = tmp_path / lost.replace("/", "-")
        with pytest.raises(Stop):
            trainer_of(folder, dataset_ledger=None, dataset_epsilon=None, dataset_delta=None).fit(
                data_of(), progress=stop
            )
        (folder / "run" / lost).unlink()
        with pytest.raises((LedgerError, RunFolderError), match=said):
            PrivateTrainer.resume(folder / "run", data_of())


def test_tensors_that_are_no_pairs_are_refused() -> None:
    """Every item would be dropped, and a budget spent on noise."""
    rows, labels = torch.tensor(X).float(), torch.tensor(Y)

    def of(*tensors: torch.Tensor, **options: Any) -> PrivateData:
        dataset = torch.utils.data.TensorDataset(*tensors)
        return PrivateData.from_dataset(dataset, n_declared=60, classes=[0, 1], **options)

    for tensors, options in (
        ((rows,), {}), ((rows, labels, labels), {}), ((rows, labels), {"feature_shape": 7}), ((rows, rows), {}),
    ):  # fmt: skip
        with pytest.raises(DataError, match=r"dataset holds tensors .*TensorDataset\(X, y\)"):
            of(*tensors, **options)
    with pytest.raises(DataError, match="test holds tensors"):
        of(rows, labels, test=torch.utils.data.TensorDataset(rows))
    for fine in (of(rows, labels), of(rows, labels[:, None], feature_shape=5)):
        assert len(fine.load(np.random.default_rng(0)).X) == 60


def test_a_linear_layer_that_was_changed_by_hand_is_run_as_it_is() -> None:
    """A ``forward`` of its own, or a hook on all modules: the same sums as of the layer inside another module."""
    model = torch.nn.Linear(5, 2)
    model.forward = types.MethodType(  # type: ignore[method-assign]
        lambda self, x: torch.nn.functional.linear(x, self.weight, self.bias) * 3 + 1, model
    )
    agree(model)
    with torch.nn.modules.module.register_module_forward_hook(
        lambda module, given, out: out * 2 if isinstance(module, torch.nn.Linear) else None
    ):
        agree(torch.nn.Linear(5, 2))


@pytest.mark.parametrize("where", ["module", "all modules", "class", "mode"])
def test_a_linear_layer_under_other_rules_is_run_as_it_is(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks on the way back, another ``forward`` of the class, a mode that changes ``F.linear``."""
    model, run = torch.nn.Linear(5, 2), torch.nn.functional.linear

    class Thrice(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, given: Any = (), words: Any = None) -> Any:
            found = function(*given, **(words or {}))
            return 3 * found if function is run else found

    if where == "module":
        model.register_full_backward_pre_hook(lambda _, gradients: (2 * gradients[0],))
        agree(model)
    elif where == "all modules":
        with torch.nn.modules.module.register_module_full_backward_pre_hook(
            lambda module, gradients: (2 * gradients[0],) if isinstance(module, torch.nn.Linear) else None
        ):
            agree(model)
    elif where == "class":
        monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, x: 3 * run(x, self.weight, self.bias))
        agree(model)
    else:
        with Thrice():
            agree(model)


def test_hooks_on_the_gradient_of_a_parameter_are_refused() -> None:
    for register in ("register_hook", "register_post_accumulate_grad_hook"):
        model = torch.nn.Sequential(torch.nn.Linear(5, 2))
        hook = getattr(model[0].weight, register)(lambda *_: None)
        with pytest.raises(ModelError, match=r"'0\.weight' has a hook on its gradient"):
            sgd.clipped_gradient(model, losses, BATCH, 1.0)
        hook.remove()
        sgd.clipped_gradient(model, losses, BATCH, 1.0)


def test_an_audit_of_no_data_says_what_it_needs() -> None:
    with pytest.raises(ConfigError, match="data = NoneType"):
        PrivateTrainer(epsilon=1.0).audit(None)  # type: ignore[arg-type]


def agree(model: torch.nn.Module) -> None:
    """Sums of the layer and of the layer alone in a ``Sequential``."""
    found, _ = sgd.clipped_gradient(model, sgd.ModelLoss(), BATCH, 0.5)
    wanted, _ = sgd.clipped_gradient(torch.nn.Sequential(model), sgd.ModelLoss(), BATCH, 0.5)
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[f"0.{name}"], rtol=1e-5, atol=1e-6)


def test_data_in_a_wrong_place_are_not_shown() -> None:
    """An error names the type: values of records passed by mistake must not end in a log."""
    rows = torch.full((60, 5), 4242.0)
    with pytest.raises(ConfigError, match="Tensor") as loss:
        sgd.clipped_gradient(torch.nn.Linear(5, 2), rows, BATCH, 1.0)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="Tensor") as model:
        sgd.clipped_gradient(rows, losses, BATCH, 1.0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Tensor") as data:
        PrivateTrainer(method="dp_sgd").fit(rows)  # type: ignore[arg-type]
    assert not any("4242" in str(error.value) for error in (loss, model, data))


class Items(torch.utils.data.Dataset):
    """The records one by one; none of them may be read."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("a record was read")


@pytest.mark.parametrize("kind", ["arrays", "dataset", "file"])
def test_a_fixed_size_of_another_number_of_records_is_refused_before_the_cap_is_charged(
    kind: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "X.npy", X)
    rows: Any = {"arrays": X, "file": str(tmp_path / "X.npy"), "dataset": None}[kind]
    trainer = trainer_of(tmp_path, sampling="fixed_size", neighboring_relation="replace_one")
    for declared in (59, 61):
        if kind == "dataset":
            data = PrivateData.from_dataset(
                Items(), feature_shape=5, norm_bound=3.0, classes=[0, 1], n_declared=declared
            )
        else:
            data = PrivateData.from_arrays(rows, Y, norm_bound=3.0, classes=[0, 1], n_declared=declared)
        with pytest.raises(DataError, match=rf"holds 60 records and n_declared = {declared}"):
            trainer.fit(data)
    assert untouched(tmp_path)
    if kind != "dataset":
        assert trainer.fit(data_of(rows)).guarantee.epsilon <= 1.0


def test_masked_numbers_and_labels_of_items_are_missing() -> None:
    mask = np.zeros_like(X, dtype=bool)
    mask[::3, 1] = True
    items = [
        (np.ma.masked_array(row, hidden), label if i % 4 else np.ma.masked)
        for i, (row, hidden, label) in enumerate(zip(X, mask, Y, strict=True))
    ]
    usable = [i for i in range(60) if i % 3 and i % 4]
    data = PrivateData.from_dataset(items, feature_shape=5, classes=[0, 1], n_declared=60, norm_bound=None)
    assert np.array_equal(data.load(FixedNoise(0)).X, X[usable])
    labels = [label if i % 4 else np.ma.masked for i, label in enumerate(Y)]
    listed = data_of(X, labels).load(FixedNoise(0))
    assert np.array_equal(listed.y, [label for i, label in enumerate(Y) if i % 4])


def test_data_in_the_place_of_an_argument_are_not_written_out() -> None:
    secret = 4242.5
    rows, table = np.full((20, 3), secret), [[secret, 1.0, 2.0]] * 2
    wrong = [rows, torch.tensor(rows), table, [secret] * 20, [rows[0]], {"a": rows}, dict.fromkeys(range(20), secret)]
    for value in wrong:
        for argument in ("max_grad_norm", "micro_batch_size", "engine", "clipping"):
            given = {"max_grad_norm": 1.0, argument: value}
            with pytest.raises(ConfigError, match=f"{argument} = a value of type") as found:
                sgd.clipped_gradient(torch.nn.Linear(3, 2), losses, BATCH, **given)  # type: ignore[arg-type]
            assert "4242" not in str(found.value)
        for argument in inspect.signature(PrivateTrainer).parameters:
            with pytest.raises((ConfigError, ModelError)) as refused:
                PrivateTrainer(**{"model": "mlp", "epsilon": 1.0, "steps": 2, argument: value}).plan(data_of())
            assert "4242" not in str(refused.value)


def test_hidden_belongs_to_mlp_only() -> None:
    with pytest.raises(ConfigError, match=r"hidden = \(8,\) .*model=Linear.*mlp"):
        PrivateTrainer(model=torch.nn.Linear(5, 2), epsilon=1.0, hidden=(8,)).plan(data_of())
    with pytest.raises(ConfigError, match="hidden = a value of type bytes"):
        PrivateTrainer(model="mlp", epsilon=1.0, hidden=b"\x04").plan(data_of())  # type: ignore[arg-type]


class Stubborn:
    """Raises at every look."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("4242")

    def __repr__(self) -> str:
        raise RuntimeError("4242")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([64, 32, 16], "[64, 32, 16]"),
        (list(range(13)), str(list(range(13)))),
        ((0, 100), "(0, 100)"),
        ({"bounds": [0, 1]}, "{'bounds': [0, 1]}"),
        (np.int64(5), "np.int64(5)"),
        (None, "None"),
        (Path("a/b"), "PosixPath('a/b')"),
        (X, "a value of type ndarray"),
        (torch.tensor(X), "a value of type Tensor"),
        ([[4242.0] * 50], "a value of type list"),
        (([1, 2, 3], 4), "a value of type tuple"),
        ({"a": {"b": [1, 2, 3]}}, "a value of type dict"),
        ([{"age": 42, "name": "Bob"}], "a value of type list"),
        (list(range(40)), "a value of type list"),
        (b"4242", "a value of type bytes"),
    ],
)
def test_what_a_message_writes_out(value: object, text: str) -> None:
    assert shown(value) == text
    assert shown(Stubborn()) == "a Stubborn"
