"""How large a batch may be: the proof on floating-point sums ends at 2^20 records (docs/proofs-floats.md, section 3).

The drawn size of a Poisson batch is private, so nothing may be refused, cut off or logged in the open because of it.
What is refused is a *public* expected size with which a batch of the declared records could pass 2^20 at all likely.

There is room beyond it for a table with more records than declared.  The error that the proof allows for grows with
the square of the size, 2^-12 C (B/2^20)^2, and 2^-13 C of the bound is left over: it holds up to B = 2^20 · √1.5, 22 %
more.  So up to a fifth more records than declared are covered as well, with the same probability.
"""

from __future__ import annotations

import math

from dpml import errors
from dpml.mechanisms.lattice import MAX_RECORDS

UNLIKELY = 1e-12
"""Largest probability, for one step, that a Poisson batch of the declared records holds more than ``MAX_RECORDS``."""


def overflow_bound(n: int, batch: int, most: int = MAX_RECORDS) -> float:
    """Bound on P(X > most) for the size X of a Poisson batch of ``n`` records of which ``batch`` are expected.

    X is binomial with q = batch/n.  With m = most + 1 and a = m/n >= q (Hoeffding 1963, "Probability inequalities for
    sums of bounded random variables", theorem 1, (2.1)):

        P(X >= m) <= exp(-n [a ln(a/q) + (1 - a) ln((1 - a)/(1 - q))]).

    0 where n <= most: there are not so many records.  1 where the mean reaches m.
    """
    m = most + 1
    if n < m:
        return 0.0
    if batch >= m:
        return 1.0
    rest = 0.0 if n == m else (n - m) * math.log1p((batch - m) / (n - batch))  # a = 1 leaves no second term
    return math.exp(-(m * math.log(m / batch) + rest))


def largest_batch(n: int, sampling: str = "poisson") -> int:
    """The largest ``expected_batch_size`` for ``n`` declared records whose sums the proof covers.

    A batch of fixed size is as large as it says.  A Poisson batch passes 2^20 with probability at most
    :data:`UNLIKELY` in a step; that leaves more than 1,040,900 whatever n.
    """
    if sampling == "fixed_size":
        return min(n, MAX_RECORDS)
    low, high = 1, min(n, MAX_RECORDS)
    while low < high:  # the bound grows with the batch
        middle = (low + high + 1) // 2
        low, high = (middle, high) if overflow_bound(n, middle) <= UNLIKELY else (low, middle - 1)
    return low


def batch_size_of(n: int, asked: int | None, share: float, sampling: str = "poisson") -> int:
    """The expected batch size: what was asked for, or the part ``share`` of ``n`` as far as the proof goes.

    Raises:
        ConfigError: more than ``n``, or more than :func:`largest_batch`.
    """
    if asked is None:
        return min(max(1, math.ceil(share * n)), largest_batch(n, sampling))
    if asked > n:
        raise errors.invalid(
            "expected_batch_size",
            asked,
            f"at most n_declared = {n}",
            "Lower it, or declare the number of records you have.",
        )
    most = largest_batch(n, sampling)
    if asked > most:
        raise errors.invalid(
            "expected_batch_size",
            asked,
            f"at most {most} for n_declared = {n}: rounding in a sum is bounded by proof for up to 2^20 records, and "
            f"a batch must {'not hold more' if sampling == 'fixed_size' else 'hardly ever hold more'}",
            "Lower it.",
        )
    return asked
