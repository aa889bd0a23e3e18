"""Ways for one record to reach another's contribution, or to end a run: random numbers, memory, panics."""

from __future__ import annotations

import random
import secrets
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sgd_checks import one_record_loop, rows, run, small_plan
from torch import nn

from dpml import machine
from dpml.errors import ModelError
from dpml.mechanisms import SecretNoise, streams
from dpml.sgd import clipped_gradient, engine
from dpml.sgd.batches import DatasetRows
from dpml.sgd.clipping import Clipper
from dpml.sgd.randomness import seed_secretly

ENGINES = ("auto", "per_example")


def losses(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


class Net(nn.Module):
    """A hidden layer, and something of a subclass's own between the layers."""

    def __init__(self, width=20):
        super().__init__()
        self.first, self.last = nn.Linear(20, width), nn.Linear(width, 2)

    def forward(self, x):
        return self.last(self.between(torch.tanh(self.first(x))))


class PythonCoin(Net):
    def between(self, h):
        return h if random.random() < 0.5 else 0.1 * h


class NumpyCoin(Net):
    def between(self, h):
        return h if np.random.rand() < 0.5 else 0.1 * h  # noqa: NPY002


class Seeded(Net):
    def between(self, h):
        torch.manual_seed(0)
        return F.dropout(h, 0.5, True)


class SeededInside(Net):
    def between(self, h):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return F.dropout(h, 0.5, True)


class OwnGenerator(Net):
    def between(self, h):
        return h * (torch.rand(h.shape, generator=torch.Generator().manual_seed(0)) < 0.5)


class OwnProjection(Net):
    def between(self, h):
        return h @ torch.randn(20, 20, generator=torch.Generator().manual_seed(0))


class Reseeding(Net):
    """Draws a mask; a large record sets all generators first."""

    def between(self, h):
        if float(h.detach().abs().max()) > 0.999999:
            torch.manual_seed(0)
            random.seed(0)
            np.random.seed(0)  # noqa: NPY002
        return F.dropout(h, 0.5, True) * random.choice((1.0, 2.0)) * np.random.choice((1.0, 3.0))  # noqa: NPY002


def equal_records(count):
    return torch.randn(1, 20).expand(count, 20).contiguous(), torch.zeros(count, dtype=torch.int64)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", [PythonCoin, NumpyCoin])
def test_records_do_not_share_a_coin(kind, engine):
    """One coin for all that are run at once: a record more would move others to another coin.  False alarm 2^-59."""
    norms = clipped_gradient(kind(), losses, equal_records(60), 1.0, engine=engine)[1]
    assert len({round(float(n), 6) for n in norms}) == 2


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", [Seeded, SeededInside, OwnGenerator, OwnProjection])
def test_a_known_seed_gives_every_record_the_same_numbers_wherever_it_stands(kind, engine):
    batch = equal_records(6)
    model = kind()
    sums, norms = clipped_gradient(model, losses, batch, 1.0, engine=engine)
    alone = one_record_loop(model, losses, batch, 1.0)
    assert norms.max() - norms.min() < 1e-5 * norms.max()
    expected = alone[0] if isinstance(alone, tuple) else alone
    for name, value in sums.items():
        torch.testing.assert_close(value, expected[name].double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_record_does_to_the_generators_stays_with_it(engine):
    def others(first):
        batch = equal_records(8)
        batch[0][0] = first
        torch.manual_seed(5)
        return clipped_gradient(model, losses, batch, 1.0, engine=engine)[1][1:]

    model = Reseeding()
    torch.manual_seed(9)
    state = torch.get_rng_state()
    usual = others(0.1)
    torch.set_rng_state(state)
    assert torch.equal(usual, others(1e6))
    assert len(usual.unique()) > 1


def test_seeds_are_more_than_one_short_number(monkeypatch):
    """A stream that starts from 32 bits can be tried out: with every short draw known, the streams still differ."""
    monkeypatch.setattr(secrets, "randbits", lambda bits: 7)
    found = []
    for _ in range(2):
        with torch.random.fork_rng(devices=[]):
            seed_secretly()
            found.append((float(torch.rand(())), np.random.rand()))  # noqa: NPY002
    assert found[0][0] != found[1][0]
    assert found[0][1] != found[1][1]


class Crops:
    """Items with what the global generators give."""

    def __len__(self):
        return 10

    def __getitem__(self, i):
        return torch.tensor([float(torch.rand(())), random.random(), np.random.rand()]), 0  # noqa: NPY002


def test_workers_do_not_draw_by_a_known_seed():
    """A DataLoader with a generator of its own gives its workers the same seeds in every run."""
    found = []
    for _ in range(2):
        torch.manual_seed(1)
        items = DatasetRows(Crops(), (np.zeros(3), 0), workers=1)
        found.append(items.take(np.arange(4))[0])
        items.close()
    assert bool((found[0] != found[1]).all())


# -- errors and memory ------------------------------------------------------------------------------------------------
class Panic(BaseException):
    """As libraries written in Rust raise it: no Exception."""


class Panics(Net):
    def between(self, h):
        if float(h.detach()[0, 0]) > 0.99:
            raise Panic
        return h


@pytest.mark.parametrize("engine", ENGINES)
def test_a_panic_is_a_record_s(engine):
    X, y = equal_records(5)
    model = Panics()
    with torch.no_grad():
        model.first.weight.mul_(0.01)
        X = 0.1 * X
        X[2] = 1e6 * model.first.weight[0].sign()
    sums, norms = clipped_gradient(model, losses, (X, y), 1.0, engine=engine)
    assert torch.isnan(norms).tolist() == [False, False, True, False, False]
    assert all(bool(torch.isfinite(value).all()) for value in sums.values())


class PanickingItems(Crops):
    def __getitem__(self, i):
        if i == 3:
            raise Panic
        return np.ones(3), 0


def test_a_panic_is_an_item_s():
    items = DatasetRows(PanickingItems(), (np.zeros(3), 0))
    assert len(items.take(np.arange(5))[0]) == 4
    assert items.left_out == 1


def test_an_interrupt_is_no_record_s():
    class Stopped(Net):
        def between(self, h):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        clipped_gradient(Stopped(), losses, equal_records(3), 1.0)


class Hoard(list):
    """Memory that is held as long as somebody refers to it."""


held: list[weakref.ref] = []


class Hoarder(Net):
    """A record takes memory, piece by piece, until there is none."""

    def between(self, h):
        if float(h.detach()[0, 0]) > 0.99:
            mine = Hoard()
            held.append(weakref.ref(mine))
            try:
                raise MemoryError
            except MemoryError as error:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory") from error
        return h


class HoardingItems(Crops):
    def __getitem__(self, i):
        if i == 3:
            mine = Hoard()
            held.append(weakref.ref(mine))
            raise MemoryError
        return np.ones(3), 0


def test_memory_that_a_record_holds_is_not_the_machine_s(monkeypatch):
    """The question is asked when the record's own is given back; else the record would end the run."""
    held.clear()
    monkeypatch.setattr(machine, "is_short_of_memory", lambda: any(ref() is not None for ref in held))
    X, y = equal_records(5)
    model = Hoarder()
    X = 0.1 * X
    X[2] = 1e6 * model.first.weight.detach()[0].sign()
    with torch.no_grad():
        model.first.weight.mul_(0.01)
    norms = clipped_gradient(model, losses, (X, y), 1.0)[1]
    assert held
    assert torch.isnan(norms).tolist() == [False, False, True, False, False]
    held.clear()
    assert len(DatasetRows(HoardingItems(), (np.zeros(3), 0)).take(np.arange(5))[0]) == 4
    assert held


class Largest(Net):
    """Keeps an extreme of all records that it has met in a plain number; the same records again do not move it."""

    extreme = 1.0

    def forward(self, x):
        self.extreme = max(self.extreme, float(x.abs().max()))
        return self.last(torch.tanh(self.first(x / self.extreme)))


class Smallest(Net):
    least = 1e9

    def forward(self, x):
        self.least = min(self.least, float(x.min()))
        return self.last(torch.tanh(self.first(x / (1.0 + abs(self.least)))))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", [Largest, Smallest])
def test_a_model_that_keeps_an_extreme_is_refused(kind, engine):
    with pytest.raises(ModelError, match="again"):
        clipped_gradient(kind(), losses, equal_records(4), 1.0, engine=engine)


# -- a parameter without axes; sources and threads --------------------------------------------------------------------
class Temperature(Net):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def between(self, h):
        return h * self.scale


def test_a_parameter_that_is_one_number_needs_no_run_alone():
    batch = torch.randn(5, 20), torch.randint(0, 2, (5,))
    model = Temperature().double()
    batch = batch[0].double(), batch[1]
    clipper = Clipper(model, losses, batch)
    assert clipper.reason == ""
    _, norms = clipper(batch, 1.0)
    for i, found in enumerate(norms):
        loss = losses(model, (batch[0][i : i + 1], batch[1][i : i + 1])).sum()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        expected = torch.cat([g.reshape(-1) for g in gradients]).norm()
        assert float(found) == pytest.approx(float(expected), rel=1e-12)


def test_a_source_of_somebody_else_is_never_asked_by_two_threads(monkeypatch):
    """It may not bear it: a source that hands out a prepared block, say, would hand it out twice."""
    busy, asked, overlaps = threading.Lock(), [], []

    class Elsewhere:
        secret = True

        def __init__(self):
            self.inner = SecretNoise(threads=1)

        def alone(self, draw, *given):
            free = busy.acquire(blocking=False)
            overlaps.extend([] if free else [given])
            asked.append(given)
            time.sleep(0.005)  # another thread would come in meanwhile
            drawn = draw(*given)
            if free:
                busy.release()
            return drawn

        def normal(self, std, shape):
            return self.alone(self.inner.normal, std, shape)

        def uniform(self, size):
            return self.alone(self.inner.uniform, size)

    monkeypatch.setattr(engine, "PIECE", 2)  # several requests in a step
    X, y = rows(d=3)
    plan = replace(small_plan(), steps=2)
    run(plan, X, y, noise=Logged(Elsewhere()))
    assert len(asked) >= 6
    assert not overlaps
    source = Elsewhere()
    with ThreadPoolExecutor(2) as pool:  # it would notice
        list(pool.map(source.uniform, [3, 3, 3, 3]))
    assert overlaps


class Logged:
    """With the list that ``run`` writes charges to."""

    def __init__(self, source):
        self.source, self.log = source, []
        self.secret, self.normal, self.uniform = source.secret, source.normal, source.uniform


def test_a_second_interrupt_waits_for_the_helpers_too(monkeypatch):
    """Nobody may still write into an array when the caller goes on."""
    ended, writing = threading.Event(), threading.Event()
    caller = threading.current_thread()
    interrupts = []

    def work(item):
        if threading.current_thread() is caller:
            writing.wait(10.0)
            raise KeyboardInterrupt
        writing.set()
        ended.wait(0.3)
        ended.set()

    whole = streams.wait

    def interrupted(helpers):
        if not interrupts:
            interrupts.append(1)
            raise KeyboardInterrupt
        return whole(helpers)

    monkeypatch.setattr(streams, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        streams.Pool(1).share(work, [1, 2])
    assert interrupts
    assert ended.is_set()


@pytest.mark.parametrize("inside", [False, True])
def test_what_a_configuration_says_is_looked_at_again(inside):
    """A model that mixes records since its configuration was changed is no longer run as one that does not."""
    from types import SimpleNamespace

    class Configured(Net):
        def __init__(self):
            super().__init__()
            self.config = SimpleNamespace(mix=False, inner=SimpleNamespace(mix=False))

        def between(self, h):
            return h - h.mean(0) if self.config.mix or self.config.inner.mix else h

    model, batch = Configured(), (torch.randn(6, 20), torch.randint(0, 2, (6,)))
    assert Clipper(model, losses, batch).reason == ""
    if inside:
        model.config.inner.mix = True
    else:
        model.config.mix = True
    assert Clipper(model, losses, batch).reason


class Switched(nn.Module):
    """A buffer decides whether records are mixed."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(20, 2)
        self.register_buffer("mixed", torch.zeros(()))

    def forward(self, x):
        return self.layer(x - self.mixed * x.mean(0))


@pytest.mark.parametrize("how", ["replaced", "written over", "through .data"])
def test_what_is_known_of_a_model_ends_with_a_buffer(how):
    """Found with the switch off: one pass for all.  With it on, records must run alone, each with its own mean (so
    that its gradient is that of the bias alone)."""
    torch.manual_seed(0)
    model, (X, y) = Switched(), (torch.randn(12, 20), torch.arange(12) % 2)
    clipped_gradient(model, losses, (X, y), 1.0)
    if how == "replaced":
        model.mixed = torch.ones(())
    elif how == "written over":
        model.mixed.fill_(1.0)
    else:
        model.mixed.data.fill_(1.0)
    sums, norms = clipped_gradient(model, losses, (X, y), 1.0)
    alone = [clipped_gradient(model, losses, (X[i : i + 1], y[i : i + 1]), 1.0) for i in range(12)]
    assert float(sums["layer.weight"].abs().max()) == 0.0
    torch.testing.assert_close(sums["layer.bias"], sum(part["layer.bias"] for part, _ in alone), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(norms, torch.cat([norm for _, norm in alone]), rtol=1e-6, atol=0)
