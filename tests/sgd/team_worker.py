"""One of two processes that train together; started by :class:`team_checks.Pair`, told what to do over a pipe."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import time
from dataclasses import replace
from datetime import timedelta
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from sgd_checks import RecordingNoise, small_plan
from torch import nn

from dpml import PrivateData, PrivateTrainer, sgd
from dpml.mechanisms import FixedNoise, SecretNoise, noise
from dpml.sgd import adaptive, engine, team
from dpml.sgd.team import Processes


class FineGrid(engine.Grid):
    """A grid so fine that one rounding or two make no difference of 1e-9."""

    @property
    def spacing(self):
        return super().spacing * 2.0**-28


class Watched:
    """A secret source of its own keys that notes when it was first asked."""

    secret = True

    def __init__(self):
        self._inner, self.first, self.coins = SecretNoise(threads=1), None, 0

    def normal(self, std, shape):
        self.first = self.first or time.monotonic()
        return self._inner.normal(std, shape)

    def rounded(self, std, spacing, size):
        self.first = self.first or time.monotonic()
        return self._inner.rounded(std, spacing, size)

    def uniform(self, size):
        self.first = self.first or time.monotonic()
        self.coins += 1
        return self._inner.uniform(size)


def train(
    rank,
    X,
    y,
    *,
    plan=None,
    seed=None,
    fine=False,
    start=None,
    slow_charge=0.0,
    fail=None,
    kill=None,
    hang=None,
    spoil=False,
    differing=None,
    timeout=60.0,
    team=None,
):
    """``fit_dp_sgd`` of a bias-free linear model; ``seed`` makes the noise repeatable, else it is secret.

    ``fail`` = (rank, step) raises there, ``kill`` = (rank, step) ends the process by SIGKILL.
    """
    plan = small_plan(**(plan or {}))
    model = nn.Linear(X.shape[1], 1, bias=False).double()
    with torch.no_grad():
        model.weight.fill_(7.0 * rank)  # only the leader's count
    source = RecordingNoise(seed) if seed is not None else Watched()
    if differing == "n" and rank == 1:
        X, y = X[:-1], y[:-1]
    if differing == "plan" and rank == 1:
        plan = replace(plan, learning_rate=plan.learning_rate * 1.001)
    if differing == "source" and rank == 1:
        source = Watched()
    charges, states, shares, charged_at = [], [], [], []

    def reserve(event, count):
        time.sleep(slow_charge)
        charges.append(count)
        charged_at.append(time.monotonic())

    def on_step(step):
        if fail == (rank, step):
            raise MemoryError("this process has no memory left")
        if hang == (rank, step):
            time.sleep(3.0)
        if kill == (rank, step):
            os.kill(os.getpid(), signal.SIGKILL)

    with contextlib.ExitStack() as stack:
        if fine:
            stack.enter_context(mock.patch.object(engine, "Grid", FineGrid))
            stack.enter_context(mock.patch.object(adaptive, "Grid", FineGrid))
        members = stack.enter_context(team or Processes(timeout=timeout))
        whole = members.total

        def total(release):
            if release.numel() > 1:
                shares.append(release.numpy().copy())
            out = whole(release)
            return out + 1e-12 * rank if spoil else out

        members.total = total
        try:
            trained, notes = sgd.fit_dp_sgd(
                plan,
                model,
                X,
                y,
                noise=source,
                reserve=reserve,
                on_step=on_step,
                save_checkpoint=states.append,
                start=start if rank == 0 else None,
                team=members,
            )
        except Exception as error:
            if isinstance(source, RecordingNoise):
                error.drawn = [len(source.uniforms), len(source.normals)]
            error.charges = charges
            raise
    return {
        "weights": trained.weight.detach().numpy().ravel().copy(),
        "notes": notes,
        "charges": charges,
        "charged_at": charged_at,
        "states": states,
        "shares": np.array(shares),
        "first_draw": getattr(source, "first", None),
    }


def table(n=400, d=3):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, d)) / 3
    return X, (X[:, 0] > 0).astype(int)


def private_data(X, y):
    return PrivateData.from_arrays(X, y, norm_bound=1.0, classes=[0, 1], n_declared=400)


ARGUMENTS = {
    "model": "logreg",
    "method": "dp_sgd",
    "epsilon": 1.0,
    "steps": 6,
    "checkpoint_every": 2,
    "expected_batch_size": 50,
    "accountant": "zcdp",
    "device": "cpu",
}


def private_run(rank, *, folder=None, seed=None, resume=False, fail=None, kill=None, differing=None, stop=()):
    """``PrivateTrainer.fit`` or ``.resume`` as any script calls it; ``fail`` = (rank, step) raises in its progress."""
    X, y = table()
    if differing == "records" and rank == 1:
        X = X + np.eye(400, 3) * 1e-9
    arguments = ARGUMENTS | ({"epsilon": 0.9} if differing == "plan" and rank == 1 else {})
    source = None if seed is None else FixedNoise(seed)

    def progress(step, steps, epsilon):
        if fail == (rank, step):
            raise MemoryError("no memory left")
        if kill == (rank, step):
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 3:
            for process in stop:
                os.kill(process, signal.SIGTERM)

    if resume:
        result = PrivateTrainer.resume(folder, private_data(X, y), progress=progress, noise_source=source)
    else:
        trainer = PrivateTrainer(**arguments, run_dir=folder, noise_source=source)
        result = trainer.fit(private_data(X, y), progress=progress)
    return {
        "weights": result.model.weights["weight"],
        "guarantee": result.guarantee,
        "ledger": result.ledger,
        "private": dict(result.private),
        "run_dir": result.run_dir,
        "scores": result.model.decision_function(X[:5]),
    }


# -- faults, planted by name ------------------------------------------------------------------------------------------
def same_key():
    """Both processes key their ciphers alike."""
    alike = mock.Mock(side_effect=lambda: np.random.Generator(noise.AESCounter(key=5, counter=0)))
    return mock.patch.object(noise, "_fresh_generator", alike)


def full_noise_by_all():
    return mock.patch.object(team, "noise_share", return_value=1.0)


def share_forgotten_by_one():
    whole = team.noise_share
    return mock.patch.object(
        team, "noise_share", lambda secret, rank, size: 1.0 if rank == 1 else whole(secret, rank, size)
    )


def no_noise_for_an_empty_batch():
    whole = engine.Stepper.gradient

    def gradient(self, batch):
        share = self.team.noise_share
        self.team.noise_share = share if len(batch[0]) else 0.0
        try:
            return whole(self, batch)
        finally:
            self.team.noise_share = share

    return mock.patch.object(engine.Stepper, "gradient", gradient)


def local_normaliser():
    """Each process divides by what it has drawn itself."""
    whole, size = engine.Stepper.gradient, [1]

    def gradient(self, batch):
        size[0] = max(len(batch[0]), 1)
        return whole(self, batch)

    return _both(
        mock.patch.object(engine.Stepper, "gradient", gradient),
        mock.patch.object(engine, "normaliser", side_effect=lambda plan: float(size[0])),
        mock.patch.object(Processes, "agree"),
    )


def half_normaliser():
    """Each process divides by its share of the expected batch."""
    return mock.patch.object(engine, "normaliser", lambda plan: plan.expected_batch_size / 2.0)


def charged_by_all():
    whole = Processes.once

    def once(self, action):
        if self.rank:
            action()
        whole(self, action)

    return mock.patch.object(Processes, "once", once)


def not_waiting_for_the_charge():
    return _both(
        mock.patch.object(Processes, "once", lambda self, action: action() if self.rank == 0 else None),
        mock.patch.object(Processes, "ready"),
    )


def no_barrier():
    return mock.patch.object(Processes, "ready")


def drawn_before_the_barrier():
    """The next step's coins are drawn before the others are known to be there."""
    whole = engine.draw_batch

    def early(plan, rows, source, members):
        index = whole(plan, rows, source, members)
        Processes.waiting(members)
        return index

    return _both(
        mock.patch.object(Processes, "waiting", Processes.ready, create=True),
        mock.patch.object(Processes, "ready"),
        mock.patch.object(engine, "draw_batch", early),
    )


def everyone_takes_all():
    """The records are not split: each process sums the whole batch."""
    return _both(
        mock.patch.object(Processes, "mine", lambda self, sampler, source, n, q: sampler(source, n, q)),
        mock.patch.object(Processes, "rows", lambda self, X, y, make: make(X, y)),
    )


def own_clip():
    """Each process follows its own count."""
    whole = Processes.total
    return _both(
        mock.patch.object(
            Processes, "total", lambda self, release: release if release.numel() == 1 else whole(self, release)
        ),
        mock.patch.object(Processes, "agree"),
    )


def grid_of_one():
    """The grid allows for one rounding only."""
    whole = engine.Grid
    return mock.patch.object(engine, "Grid", lambda clip, size, sums=1: whole(clip, size))


def records_not_compared():
    return mock.patch("dpml.teamwork._refuse_other_records")


@contextlib.contextmanager
def _both(*patches):
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def main(rank, store):
    torch.set_num_threads(1)
    os.environ["WORLD_SIZE"], os.environ["RANK"] = "2", str(rank)  # as torchrun says it
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    out = sys.stdout.buffer
    sys.stdout = sys.stderr
    while True:
        try:
            task, fault, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        try:
            with globals()[fault]() if fault else contextlib.nullcontext():
                answer = globals()[task](rank, **arguments)
        except (Exception, SystemExit) as error:
            answer = {"error": type(error).__name__, "message": str(error), "drawn": getattr(error, "drawn", None)}
            answer["charges"] = getattr(error, "charges", None)
        pickle.dump(answer, out)
        out.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
