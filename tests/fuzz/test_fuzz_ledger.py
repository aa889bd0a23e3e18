"""Ledgers with something wrong in them: refused with a LedgerError that says where, never read as something else."""

# ruff: noqa: PT017 (a refusal is one of two outcomes here; its message is looked at where it occurs)
from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz_inputs import STRANGE, as_json, changed, examples, mutilated, search
from hypothesis import strategies as st

from dpml import PrivateData, PrivateSession, PrivateTrainer
from dpml import accounting as acc
from dpml.accounting import Ledger
from dpml.accounting.dataset_ledger import CAP_FILTERS, DatasetLedger
from dpml.accounting.ledger import GENESIS, canonical, parse_ledger, seal
from dpml.errors import BudgetExceededError, DpmlError, LedgerError
from dpml.mechanisms import Count, FixedNoise, PureBudget

STEP = acc.PoissonSampled(0.1, acc.Gaussian(1.5))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A closed ledger of a plan, three charges and the outcome."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    made = Ledger.create(path, {"steps": 6, "guarantee": {"epsilon": 1.0}})
    for event, count in ((STEP, 2), (acc.Pure(0.1), 1), (STEP, 4)):
        made.charge(event, stage="train", count=count)
    made.close({"epsilon": 1.0, "files": {}})
    return path.read_bytes()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("run") / "run"
    X = np.eye(4)[np.arange(40) % 4]
    data = PrivateData.from_arrays(X, np.arange(40) % 2, norm_bound=1.0, classes=[0, 1], n_declared=40)
    PrivateTrainer(method="output", epsilon=1.0, delta=1e-4, run_dir=folder, noise_source=FixedNoise(0)).fit(data)
    assert acc.verify(folder, allow_test_noise=True).ok
    return folder


def chained(lines: list[Any]) -> bytes:
    """Lines with their hashes and links made right again, as one who rewrites a ledger would do."""
    out, previous = b"", GENESIS
    for line in lines:
        if isinstance(line, dict):
            line = {**line, **({"previous": previous} if "previous" in line else {})}
            try:
                line = seal(line)
                out += canonical(line) + b"\n"
            except (ValueError, TypeError, RecursionError):  # what no ledger can hold: as Python writes it
                out += as_json(line) + b"\n"
            previous = line.get("hash", GENESIS)
        else:
            out += as_json(line) + b"\n"
    return out


@examples(150)
def test_damaged_bytes_are_never_read_as_another_ledger(inputs: int, whole: bytes) -> None:
    """A hash chain: what is accepted is a beginning of the ledger that was written, line for line."""

    def body(raw: bytes) -> None:
        try:
            record = parse_ledger(raw, "ledger")
        except LedgerError as error:
            assert 0 < len(str(error)) < 10_000
            return
        assert whole.startswith(raw)
        assert raw.count(b"\n") == record.count

    search(inputs, body, mutilated([whole]))


@examples(150)
def test_a_rewritten_ledger_is_read_or_refused(inputs: int, whole: bytes, tmp_path: Path) -> None:
    """Whole chain anew, around values that nobody expects: a record whose event can be accounted, or a LedgerError."""
    lines = [json.loads(line) for line in whole.splitlines()]
    path = tmp_path / "ledger.jsonl"
    read = 0

    def body(document: Any) -> None:
        nonlocal read
        raw = chained(document if isinstance(document, list) else [document])
        path.write_bytes(raw)
        try:
            record = parse_ledger(raw, "ledger")
        except LedgerError as error:
            assert 0 < len(str(error)) < 250_000
            with pytest.raises(LedgerError):
                Ledger.resume(path).release()
            return
        read += 1
        assert acc.from_json(record.event.to_json()) == record.event
        if record.closed is None:
            Ledger.resume(path).release()

    search(inputs, body, changed([lines, lines[:3]]))
    assert read


@examples(100, 3_000)
def test_verify_never_crashes_and_never_believes_it(inputs: int, run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    paths = [folder / "release" / name for name in ("ledger.jsonl", "result.json")]
    originals = [path.read_bytes() for path in paths]

    def body(which: int, cuts: st.DataObject) -> None:
        raw = cuts.draw(mutilated([originals[which]]))
        paths[which].write_bytes(raw)
        try:
            same = which == 1 and _same_json(raw, originals[which])
            assert acc.verify(folder, allow_test_noise=True).ok == (same or raw == originals[which])
        finally:
            paths[which].write_bytes(originals[which])

    search(inputs, body, st.integers(0, 1), st.data())


def _same_json(raw: bytes, other: bytes) -> bool:
    try:
        return bool(json.loads(raw) == json.loads(other))
    except (ValueError, RecursionError):
        return False


@examples(60, 3_000)
def test_verify_of_a_result_with_strange_values(inputs: int, run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    path = folder / "release/result.json"
    original = json.loads(path.read_text())

    def body(document: Any) -> None:
        path.write_bytes(as_json(document))
        found = acc.verify(folder, allow_test_noise=True)
        assert found.ok == (document == original and repr(document) == repr(original)) or document == original

    search(inputs, body, changed([original]))


@examples(60, 2_000)
@pytest.mark.parametrize("kind", CAP_FILTERS)
def test_a_damaged_ledger_of_a_data_set_is_refused_and_nothing_is_reserved(
    inputs: int, kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "table.jsonl"

    def reserve(name: str) -> None:
        DatasetLedger(path, 4.0, 1e-3, filter=kind).reserve(name, 0.5, 1e-5, acc.Gaussian(20.0))

    for k in range(3):
        reserve(f"run {k}")
    original = path.read_bytes()
    lines = [json.loads(line) for line in original.splitlines()]

    def body(raw: bytes | list[Any]) -> None:
        raw = raw if isinstance(raw, bytes) else chained(raw)
        path.write_bytes(raw)
        whole = raw[: raw.rfind(b"\n") + 1]
        try:
            reserve("one more")
        except (DpmlError, BudgetExceededError):
            assert path.read_bytes() in (raw, whole)  # a torn line that was never used may be cut off
            return
        assert path.read_bytes().startswith(whole)
        assert path.read_bytes().count(b"\n") == whole.count(b"\n") + 1

    documents = changed([lines]).filter(lambda d: isinstance(d, list))
    search(inputs, body, mutilated([original]) | documents)


@examples(60, 2_000)
def test_a_damaged_ledger_of_a_session_answers_nothing(inputs: int, tmp_path: Path) -> None:
    people = {"age": [34.0, 51.0, 17.0] * 20}
    folder = tmp_path / "session"
    first = PrivateSession(people, PureBudget(epsilon=1.0), folder=folder, noise_source=FixedNoise(0))
    for _ in range(3):
        first.ask(Count(), epsilon=0.1)
    three = first.spent
    path = folder / "session.jsonl"
    original, mark = path.read_bytes(), {p.name: p.read_bytes() for p in folder.iterdir() if p != path}

    def body(raw: bytes) -> None:
        path.write_bytes(raw)
        for name, content in mark.items():
            (folder / name).write_bytes(content)
        whole = raw[: raw.rfind(b"\n") + 1]
        try:
            again = PrivateSession(people, PureBudget(epsilon=1.0), folder=folder, noise_source=FixedNoise(0))
            spent = again.spent
            again.ask(Count(), epsilon=0.1)
        except DpmlError:
            assert path.read_bytes() in (raw, whole)
            return
        assert whole == original  # only a torn rest can be forgiven
        assert spent == three

    search(inputs, body, mutilated([original]))


@pytest.mark.parametrize("key", ["index", "count", "event", "stage", "kind", "previous", "hash"])
def test_each_strange_value_in_each_key_of_a_charge(key: str, whole: bytes) -> None:
    lines = [json.loads(line) for line in whole.splitlines()]
    for value in [value for value in STRANGE if value != lines[1][key]]:
        strange = copy.deepcopy(lines)
        strange[1][key] = value
        try:
            parse_ledger(chained(strange), "ledger")
        except LedgerError:
            continue
        assert key in ("count", "event", "stage", "previous", "hash")


@pytest.mark.parametrize(
    "raw",
    [b"", b"\n", b"\n\n", b"null\n", b"[]\n", b"{}\n", b"[" * 100_000 + b"\n", b'{"plan":' * 100_000 + b"\n", b"\x00\n",
     b'{"index":' + b"9" * 5000 + b"}\n", b'{"index":1e999}\n', b'{"index":NaN}\n', b"\xff\xfe\n", b'"\\ud800"\n'],
    ids=lambda raw: repr(raw[:12]),
)  # fmt: skip
def test_ledgers_that_are_none(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(raw)
    with pytest.raises(LedgerError, match="line 1"):
        acc.read_ledger(path)
    with pytest.raises(LedgerError):
        Ledger.resume(path)
