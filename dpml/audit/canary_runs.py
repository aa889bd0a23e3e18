"""Canaries in a real run of ``PrivateTrainer``: data that hold them, a network that gives them their gradients, and
what an attacker reads off every step.

Canaries are made from fresh random numbers, so publishing them tells about nobody (``mislabelled`` ones are rows of
data that are declared public).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import nn

from dpml import audit
from dpml.data import PrivateData, PublicInfo, Records
from dpml.errors import ConfigError

MARK = 2.0**20
"""A row whose first entry is this number plus i is gradient canary i.  A record with such an entry is taken for one:
it gets that canary's gradient, clipped like any other."""
LENGTH = 1000.0
"""Norm of a canary's gradient before clipping, times C: far above it, so that every clipping rule gives norm C."""


def with_canaries(data: PrivateData, rows: np.ndarray, labels: np.ndarray, *, alone: bool) -> PrivateData:
    """The same data with ``rows`` ``(m, …)`` and ``labels`` ``(m,)`` as further records; ``alone``: with these only.

    What is public stays as it is, but that a stand-in has no test set and is called one.
    """
    public = data.public
    if alone:
        public = replace(
            public, name=f"stand-in for {public.name}", is_public=False, test_is_public=False, has_test=False
        )

    def read(noise: Any, sparse: bool = False) -> Records:
        if alone:
            return Records(X=_sparse(rows) if sparse else rows, y=labels)
        found = data.load(noise, sparse=sparse)
        return replace(found, X=_stacked(found.X, rows), y=np.concatenate([found.y, labels.astype(found.y.dtype)]))

    return PrivateData(public, read, data.encoder)


def _sparse(rows: np.ndarray) -> Any:
    return sparse.csr_array(rows.reshape(len(rows), -1))


def _stacked(X: Any, rows: np.ndarray) -> Any:
    if sparse.issparse(X):
        return sparse.vstack([X, _sparse(rows)], format="csr")
    return np.concatenate([X, rows.reshape((len(rows), *X.shape[1:])).astype(X.dtype)])


# ------------------------------------------------------------------------------------------------- what goes in


def input_rows(public: PublicInfo, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows ``(m, …)`` in random directions at the public norm bound (1 where there is none), and random targets."""
    size = int(np.prod(public.feature_shape))
    rows, labels = audit.input_canaries(count, size, max(2, len(public.classes)), norm_bound=public.norm_bound or 1.0)
    targets = labels if public.task == "classification" else 2.0 * labels - 1.0
    return rows.reshape(count, *public.feature_shape), targets


def mislabelled_rows(data: PrivateData, noise: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Records of data that are declared public, each with another label (for a regression: the farther bound).

    Raises:
        ConfigError: fewer records than canaries.
    """
    assert data.public.is_public
    records = data.load(noise)
    if len(records.y) < count:
        raise ConfigError(f"canaries = {count} is more than the {len(records.y)} records of these public data.")
    picked = np.random.default_rng().permutation(len(records.y))[:count]
    truth = records.y[picked]
    if data.public.task == "regression":
        return np.asarray(records.X[picked]), np.where(truth > 0, -1.0, 1.0)
    return np.asarray(records.X[picked]), audit.mislabelled(truth, len(data.public.classes))


def marked_rows(public: PublicInfo, count: int) -> np.ndarray:
    """Rows ``(m, …)`` that :class:`CanaryModule` knows as canaries 0 … m − 1."""
    rows = np.zeros((count, int(np.prod(public.feature_shape))))
    rows[:, 0] = MARK + np.arange(count)
    return rows.reshape(count, *public.feature_shape)


def step_signs(count: int, steps: int) -> np.ndarray:
    """Signs ``(m, T)`` of the canaries' gradients: blocks of ±(1, −1, −1, 1), each with a random sign.

    What the other records add along a canary's direction changes slowly, so over a block it cancels, and so does a
    steady change; what other canaries add is as often against as along.
    """
    blocks = np.random.default_rng().integers(0, 2, (count, -(-steps // 4))) * 2 - 1
    return np.asarray(np.kron(blocks, [1, -1, -1, 1])[:, :steps], dtype=np.int8)


class Clock:
    """The number of steps done, which a network and all its copies share."""

    def __init__(self) -> None:
        self.step = 0

    def __deepcopy__(self, memo: object) -> Clock:
        return self


class CanaryModule(nn.Module):
    """A network that is ``inner`` on records, and on canary i the function whose gradient is a chosen direction.

    There the outputs are 0 whatever the weights, and their slope along direction i is ``pull`` times the step's sign:
    the loss's gradient is ± that direction, ``LENGTH`` · C long, in every step.

    Args:
        inner: the run's own network.
        directions: ``(m, p)`` unit vectors, or ``None`` for one coordinate each.
        places: ``(m,)`` these coordinates, among the p trained parameters in their order.
        signs: ``(m, T)``, see :func:`step_signs`.
        pull: see above; its sign makes the *sum* of gradients grow along the signed direction.
        clock: says which step it is.
    """

    def __init__(
        self,
        inner: nn.Module,
        directions: torch.Tensor | None,
        places: torch.Tensor,
        signs: torch.Tensor,
        pull: float,
        clock: Clock,
    ) -> None:
        super().__init__()
        self.inner = inner
        self.directions, self.places, self.signs, self.pull, self.clock = directions, places, signs, pull, clock
        self.names = tuple(name for name, value in inner.named_parameters() if value.requires_grad)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        mark = rows.reshape(len(rows), -1)[:, 0]
        canary = mark >= MARK
        found: torch.Tensor = self.inner(torch.where(canary.reshape(-1, *[1] * (rows.dim() - 1)), 0.0, rows))
        named = dict(self.inner.named_parameters())
        flat = torch.cat([named[name].reshape(-1) for name in self.names])
        moving = flat - flat.detach()  # zeros with the slope of the weights
        index = (torch.where(canary, mark, MARK) - MARK).long().clamp(max=len(self.places) - 1)
        if self.directions is None:
            along = moving[self.places.to(rows.device)[index]]
        else:
            along = self.directions.to(rows.device, moving.dtype)[index] @ moving
        signs = self.signs[:, min(self.clock.step, self.signs.shape[1] - 1)].to(rows.device, moving.dtype)
        along = along * signs[index]
        first = torch.zeros_like(found.reshape(len(rows), -1))
        first = torch.cat([(self.pull * along).to(found.dtype).reshape(-1, 1), first[:, 1:]], dim=1)
        return torch.where(canary.reshape(-1, *[1] * (found.dim() - 1)), first.reshape(found.shape), found)


def slope_at_zero(network: nn.Module, loss: Callable[..., Any], public: PublicInfo) -> tuple[float, float]:
    """(target, dℓ/d(first output)) at outputs of zero, for the target with the steepest loss.

    Raises:
        ConfigError: the loss is flat there for every target, so a gradient canary cannot be made.
    """
    with torch.no_grad():
        shape = network(torch.zeros(1, *public.feature_shape, dtype=next(network.parameters()).dtype)).shape
    kinds: tuple[Any, ...] = (-1.0, 1.0) if public.task == "regression" else tuple(range(max(2, len(public.classes))))
    best = (0.0, 0.0)
    for target in kinds:
        outputs = torch.zeros(shape, dtype=next(network.parameters()).dtype, requires_grad=True)
        given = torch.tensor([target], dtype=outputs.dtype if public.task == "regression" else torch.int64)
        (slope,) = torch.autograd.grad(loss(outputs, given).sum(), outputs)
        value = float(slope.reshape(-1)[0])
        if np.isfinite(value) and abs(value) > abs(best[1]):
            best = (float(target), value)
    if best[1] == 0.0:
        raise ConfigError("the loss is flat at outputs of zero: use access='black_box' with canary='input'.")
    return best


# -------------------------------------------------------------------------------------------------- what comes out


class StepReader:
    """A progress callback that also sees the state after every step and keeps each canary's share in its noisy sum.

    The noisy mean is read off the optimizer's first moment, m_t = μ m_{t−1} + ĝ (``sgd``) or
    m_t = β₁ m_{t−1} + (1 − β₁) ĝ (``adam``): post-processing of charged values, as everything in a state.

    Args:
        plan: of ``dp_sgd``, with a state after each step.
        directions, places, clock: as of :class:`CanaryModule`.
        progress: called on.
    """

    def __init__(
        self,
        plan: Any,
        directions: np.ndarray | None,
        places: np.ndarray,
        clock: Clock,
        progress: Callable[..., None] | None,
    ) -> None:
        self.plan, self.directions, self.places, self.progress = plan, directions, places, progress
        self.clock = clock
        self.shares: list[np.ndarray] = []
        self._last: Any = 0.0
        self._clip = float(plan.max_grad_norm)

    def __call__(self, step: int, steps: int, epsilon: float) -> None:
        if self.progress is not None:
            self.progress(step, steps, epsilon)

    def on_state(self, state: Mapping[str, Any]) -> None:
        """The engine's state after a step."""
        moment = np.concatenate(
            [value.double().numpy().reshape(-1) for value in state["optimizer"]["momentum"].values()]
        )
        kept = self.plan.momentum if self.plan.optimizer == "sgd" else self.plan.betas[0]
        mean = moment - kept * self._last
        mean /= 1.0 if self.plan.optimizer == "sgd" else 1.0 - kept
        self._last = moment
        total = mean * self.plan.expected_batch_size / self._clip
        self._clip = float(state["clip"])
        self.clock.step += 1
        self.shares.append(total[self.places] if self.directions is None else self.directions @ total)


def signed_shares(shares: np.ndarray, signs: np.ndarray, *, records: bool) -> np.ndarray:
    """Shares ``(m, T)`` times their signs: 1 on average where the canary is in every step.

    ``records``: others trained along, so the mean of each block of four steps, which the canary has no part in, is
    taken off first (of fewer than four steps it is not known).
    """
    shares = shares.copy()
    whole = shares.shape[1] // 4 * 4
    if records and whole:
        blocks = shares[:, :whole].reshape(len(shares), -1, 4)
        blocks -= blocks.mean(axis=2, keepdims=True)
        shares[:, :whole] = blocks.reshape(len(shares), whole)
        shares[:, whole:] = 0.5 * signs[:, whole:]  # a share that says nothing
    return shares * signs


def loss_of(model: Any, rows: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Each row's loss ``(m,)`` under a released model: −ln p, hinge or squared error."""
    if model.is_regression:
        return np.asarray(np.square(model.decision_values(rows).reshape(-1) - targets))
    if model.kind == "linear_svm":
        values = model.decision_values(rows)
        signs = 2.0 * (targets[:, None] == (np.arange(values.shape[1]) if values.ndim > 1 else np.array([1]))) - 1.0
        return np.asarray(np.maximum(0.0, 1.0 - signs * values.reshape(len(rows), -1)).sum(axis=1))
    picked = model.probabilities(rows)[np.arange(len(rows)), targets.astype(int)]
    return np.asarray(-np.log(np.clip(picked, 1e-300, 1.0)))
