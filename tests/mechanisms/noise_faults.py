"""Checks that the tests run on whole code and tests/planted_bugs on broken code.  Each raises AssertionError."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np

from dpml.mechanisms import Grid, Prefetch, SecretNoise, lattice, streams

ROOT = Path(__file__).parents[2]
LARGE = 4 * streams.PART


# -- streams -------------------------------------------------------------------------------------------------------
def streams_never_share_a_draw() -> None:
    """Pairs of neighbouring draws, over requests and streams, are all different, and so are the ciphers' outputs.

    False alarm: two pairs of 1.3e5 are equal with probability below 1e-20, two raw blocks below 1e-30.
    """
    source = SecretNoise(threads=4)
    draws = [source.normal(1.0, size) for size in (LARGE, 1000, LARGE, streams.SMALL, 1000)]
    draws = np.concatenate(draws)
    assert np.unique(draws.view(np.complex128)).size == draws.size // 2
    coins = np.concatenate([source.uniform(LARGE), source.uniform(LARGE)])
    assert np.unique(coins.view(np.complex128)).size == coins.size // 2
    fresh = SecretNoise(threads=4)._current()
    ciphers = (*fresh.normal.streams, *fresh.small.streams, *fresh.uniform.streams)
    assert len({cipher.bit_generator.random_raw(2).tobytes() for cipher in ciphers}) == 9


def every_entry_is_filled_once() -> None:
    """Counts, for sizes around every limit, how often an entry was drawn.  Exact."""
    edges = (0, 1, streams.PART, streams.PARALLEL_FROM, LARGE)
    for threads in (1, 2, 4):
        bank = SecretNoise(threads=threads)._current().normal
        for size in {max(edge + shift, 0) for edge in edges for shift in (-1, 0, 1)}:
            counts = np.zeros(size)
            bank.fill(counts, lambda _, part: np.add(part, 1.0, out=part))
            assert (counts == 1.0).all(), (threads, size)


class CountingSource:
    """Counts up instead of drawing; says that it is secret, so that a :class:`Prefetch` draws in advance."""

    secret = True

    def __init__(self) -> None:
        self.drawn = 0
        self.threads: list[int] = []

    def normal(self, std, shape):
        size = int(np.prod(shape))
        self.threads.append(threading.get_ident())
        self.drawn += size
        return std * np.arange(self.drawn - size, self.drawn, dtype=np.float64).reshape(shape)

    def uniform(self, size):
        return np.full(size, 0.25)


def prefetched_draws_are_served_once() -> None:
    """Requests of changing sizes: no value of the source reaches the caller twice, and no array is shared.  Exact."""
    served, n = [], streams.SMALL
    with Prefetch(CountingSource()) as ahead:
        for size in [n, n, n, n + 3, n + 3, n, 1, n, 1, 1, 2 * n, n, n]:
            served.append(ahead.normal(1.0, size))
            assert served[-1].shape == (size,)
    values = np.concatenate(served)
    assert np.unique(values).size == values.size
    assert not any(np.shares_memory(a, b) for k, a in enumerate(served) for b in served[:k])


FORK = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
from dpml.mechanisms import Prefetch, SecretNoise, streams
PLANT
LARGE = 4 * streams.PART
plain, ahead = SecretNoise(threads=3), Prefetch(SecretNoise(threads=2))
W = 2.0**46  # whole numbers that do not repeat by chance
def small():
    drawn = [plain.normal(1.0, 4), plain.uniform(4), plain.rounded(W, 1.0, 4), ahead.normal(1.0, streams.SMALL)[:4]]
    return np.concatenate(drawn)
def large():
    drawn = [plain.normal(1.0, LARGE)[-6:], plain.rounded(W, 1.0, LARGE)[-4:], ahead.normal(1.0, LARGE)[:6]]
    return np.concatenate(drawn)
small(), small(), large(), small()
ahead._Prefetch__ahead.pending.result()
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.write(write, small().tobytes())
    os.write(write, large().tobytes())
    os._exit(0)
for draw in (small, large):
    theirs, ours = np.frombuffer(os.read(read, 128)), draw()
    assert theirs.size == ours.size == 16
    if np.isin(theirs, ours).any():
        os.kill(child, signal.SIGKILL)
        sys.exit(3)
os.waitpid(child, 0)
"""


def run_alone(program: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)


def a_forked_child_draws_other_noise(plant: str = "") -> None:
    """A child and its parent go on drawing after a fork, with threads running and a vector drawn in advance: no value
    is the same (by chance with probability below 1e-12).  ``plant``: a line that breaks something first."""
    done = run_alone(FORK.replace("PLANT", plant))
    assert done.returncode in (0, 3), done.stderr
    assert done.returncode == 0, "the child repeats its parent's noise"


# -- the grid ------------------------------------------------------------------------------------------------------
GRIDS = [(1.0, 1), (1.0, 3), (0.7, 50), (3.0, 1021), (1e-5, 7), (2.0**-30, 4)]


def releases_are_multiples_of_the_spacing() -> None:
    """Exact: the release divided by g (a power of two) is a whole number."""
    rng = np.random.default_rng(0)
    for bound, p in GRIDS:
        grid = Grid(bound, p)
        out = grid.release(rng.normal(size=p) * 100 * bound, rng.normal(size=p) * bound)
        assert (np.remainder(out / grid.spacing, 1.0) == 0.0).all()


def the_value_moves_the_noise_by_whole_steps() -> None:
    """Translation: with the same noise, release(S + k g) = release(S) + k g exactly, and release(S) is S rounded plus
    a term that does not depend on S at all."""
    rng = np.random.default_rng(1)
    for bound, p in GRIDS:
        grid = Grid(bound, p)
        noise, total = rng.normal(size=p) * bound, rng.normal(size=p) * bound
        nothing, some = grid.release(np.zeros(p), noise), grid.release(total, noise)
        assert (np.abs(some - nothing - total) <= grid.spacing / 2).all()
        base = some - nothing
        for k in (-(2**40), -1, 1, 3, 2**20):
            # total + k g rounded to the grid first, so that it is exact
            assert (grid.release(base + k * grid.spacing, noise) == some + k * grid.spacing).all()


def rounded_sums_stay_within_the_sensitivity() -> None:
    """Searched neighbours, 300 per grid and relation.  ``rest`` is placed so that every coordinate is rounded away from
    the other sum; contributions are clipped to ``sensitivity · shrink``.  Distances are exact up to 1e-12."""
    rng = np.random.default_rng(2)
    for bound, p in GRIDS:
        grid, zeros = Grid(bound, p), np.zeros(p)
        for trial in range(300):
            direction = np.ones(p) if trial == 0 else rng.normal(size=p) * (rng.random(p) < rng.random())
            if not direction.any():
                continue
            one = direction / np.linalg.norm(direction) * bound * grid.shrink
            for relation, (less, more) in {"add_remove": (zeros, one), "replace_one": (-one, one)}.items():
                edge = np.where(one > 0, 0.5 - 1e-9, -0.5 + 1e-9) * grid.spacing  # just short of the next step
                rest = edge - less + grid.spacing * rng.integers(-1000, 1000, p)
                apart = np.linalg.norm(grid.release(rest + more, zeros) - grid.release(rest + less, zeros))
                declared = bound * (1 if relation == "add_remove" else 2)
                assert apart <= declared * (1 + 1e-12), (bound, p, relation, apart / declared)


ATTACK_DRAWS = 100_000


def suspicious(released: np.ndarray, spacing: float) -> int:
    """How many releases show more low bits than any float64 sum with 1 in it can: no multiple of ``spacing``."""
    return int((np.remainder(released / spacing, 1.0) != 0.0).sum())


def low_bits_tell_neighbours_apart(release) -> bool:
    """The attack: counts over the values 0 and 1 (sensitivity 1), each with noise of standard deviation 10, of releases
    that are no multiple of 2^-53.  Ideal noise gives (1, 1e-20)-DP (μ = 0.1).  More than 1000 of 10^5 for one value and
    none for the other is a breach: with the chances p and q of the event, p <= e q + 1e-20, the two together have
    probability below 1e-100.  (P(|N| < 1/2) = 0.04 at σ = 10, and about 2/3 of these draws have finer bits.)"""
    noise = SecretNoise(threads=1)
    counts = []
    for value in (0.0, 1.0):
        released = release(np.full(ATTACK_DRAWS, value), noise.normal(10.0, ATTACK_DRAWS))
        counts.append(suspicious(released, 2.0**-53))
    return counts[0] > 1000 and counts[1] == 0


def low_bits_of_releases_tell_nothing() -> None:
    """The attack fails on the grid; and the last three bits of the step count have the same (uniform) distribution for
    both values: chi-square with 7 degrees of freedom, critical value at false alarm 5e-7 each (1e-6 together)."""
    from scipy import stats

    grid, noise = Grid(1.0, 1), SecretNoise(threads=1)
    assert not low_bits_tell_neighbours_apart(grid.release)
    for value in (0.0, 1.0):
        steps = grid.release(np.full(ATTACK_DRAWS, value), noise.normal(10.0, ATTACK_DRAWS)) / grid.spacing
        assert suspicious(steps, 1.0) == 0
        counts = np.bincount(np.remainder(steps, 8.0).astype(int), minlength=8)
        assert stats.chisquare(counts).pvalue > 5e-7


def several_rounded_sums_stay_within_the_sensitivity() -> None:
    """One record more shifts the others between 5 processes: every process's sum is rounded the other way.  Exact."""
    for bound, p in GRIDS:
        grid, zeros = Grid(bound, p, sums=5), np.zeros(p)
        one = np.full(p, bound * grid.shrink / np.sqrt(p))
        down, up = (np.full(p, (0.5 + side * 1e-9) * grid.spacing) for side in (-1, 1))
        less = sum(grid.release(rest, zeros) for rest in [down] * 5)
        more = sum(grid.release(rest, zeros) for rest in [up + one] + [up] * 4)
        assert np.linalg.norm(more - less) <= bound


def extremes_do_not_spread_neighbours() -> None:
    """Sums beyond 2^52 steps: still whole steps, still no further apart than before rounding and one step."""
    grid = Grid(1.0, 1)
    limit = lattice.MAX_STEPS * grid.spacing
    for value in (limit - 1.0, limit, limit + 1.0, 1e300, np.inf, -limit - 1.0, -np.inf):
        out = grid.release(np.array([value]), np.array([3.0]))
        assert out == min(max(value, -limit), limit) + 3.0


def a_zero_has_no_sign() -> None:
    """Totals and noise that round to 0 from below and above: the same zero, bit for bit."""
    grid = Grid(1.0, 1)
    for value in (-0.0, 0.0, -grid.spacing / 4, grid.spacing / 4):
        for noise in (-0.0, 0.0, -grid.spacing / 4, grid.spacing / 4):
            assert not np.signbit(grid.release(np.array([value]), np.array([noise]))).any()
