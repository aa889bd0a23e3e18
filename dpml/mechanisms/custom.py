"""Queries made of others, and of functions whose sensitivity a user declares.

What a user declares is believed.  :func:`dpml.mechanisms.sensitivity_search.check_sensitivity` looks for neighbours
that prove a declaration wrong; that it finds none proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpml.accounting.checks import ADD_REMOVE, check_count, check_list, check_number, check_relation, shown
from dpml.errors import ConfigError, invalid
from dpml.machine import refuse_unless_a_records
from dpml.mechanisms.columns import Columns, Name
from dpml.mechanisms.parts import LARGEST, NORMS, SMALLEST, Part
from dpml.mechanisms.queries import Quantile, Query, Vectors

MAX_SIZE = 10**8


@dataclass(frozen=True)
class Vector(Query):
    """Several queries asked together: one charge, an answer for each (a tuple).

    Each part of each query has an equal share of the budget and noise for its own sensitivity, so that a count and a
    sum of large numbers do not share one noise scale.  A histogram is one part.  ``sensitivity`` is the joint bound.
    """

    queries: tuple[Query, ...]

    def __post_init__(self) -> None:
        queries = tuple(check_list("queries", self.queries, "a list of queries"))
        for query in queries:
            if not isinstance(query, Query) or isinstance(query, Quantile):
                raise invalid("queries", shown(query), "queries that take additive noise", "Ask quantiles one by one.")
        if not queries:
            raise invalid("queries", queries, "one or more queries")
        self._settle(queries=queries)

    @property
    def columns(self) -> tuple[Name, ...]:
        """Of all queries."""
        return tuple(dict.fromkeys(name for query in self.queries for name in query.columns))

    def parts(self, relation: str) -> tuple[Part, ...]:
        """Of all queries, in order."""
        return tuple(part for query in self.queries for part in query.parts(relation))

    def rehearse(self, blank: Columns, relation: str, records: int | None) -> None:
        """Each query's."""
        for query in self.queries:
            query.rehearse(blank, relation, records)

    def finish(self, noisy: Vectors, relation: str, records: int | None) -> tuple[Any, ...]:
        """The answers in the order of the queries."""
        return tuple(query.finish(own, relation, records) for query, own in self._shared_out(noisy, relation))

    def enclose(self, lows: Vectors, highs: Vectors, relation: str, records: int | None) -> tuple[Any, Any]:
        """A tuple of low ends and one of high ends."""
        pairs = [
            query.enclose(low, high, relation, records)
            for (query, low), (_, high) in zip(
                self._shared_out(lows, relation), self._shared_out(highs, relation), strict=True
            )
        ]
        return tuple(low for low, _ in pairs), tuple(high for _, high in pairs)

    def _shared_out(self, vectors: Vectors, relation: str) -> list[tuple[Query, Vectors]]:
        out, start = [], 0
        for query in self.queries:
            stop = start + len(query.parts(relation))
            out.append((query, vectors[start:stop]))
            start = stop
        return out


@dataclass(frozen=True)
class Custom(Query):
    """A function of the records, of ``size`` numbers, whose sensitivity you declare and answer for.

    The function is handed a dict of columns (copies: float64 for numbers, else objects) and must be a function of
    these records alone.  What it does to hostile records is part of the declaration: clamp what you sum.  Numbers in
    its result that are not finite become 0, and where it raises or gives another size on the records all of them do,
    because a failure would tell something of the records; the declared sensitivity is that of the function with this
    rule. Before anything is charged it is tried on made-up records (none under add_remove, n rows of zeros and empty
    texts under replace_one), where it must work.

    Args:
        function: from a dict of columns to a number or ``size`` numbers.
        sensitivity: largest distance of its values on any two neighbouring data sets, > 0.
        norm: ``"l1"``, ``"l2"``, ``"linf"``, or a metric: a function of two arrays (size,).
        size: how many numbers it gives.
        neighboring_relation: the relation that ``sensitivity`` is for.  Declared for add_remove it is doubled under
            replace_one (a record leaves, another comes); declared for replace_one there is none under add_remove.
        name: what transcripts call it, public; the function's name by default.
    """

    function: Callable[[dict[Name, NDArray[Any]]], Any]
    sensitivity_: float
    norm: Any = "l1"
    size: int = 1
    neighboring_relation: str = ADD_REMOVE
    name: str | None = None

    def __init__(
        self,
        function: Callable[[dict[Name, NDArray[Any]]], Any],
        sensitivity: float,
        norm: Any = "l1",
        *,
        size: int = 1,
        neighboring_relation: str = ADD_REMOVE,
        name: str | None = None,
    ) -> None:
        if not callable(function):
            raise invalid("function", shown(function), "a function of a dict of columns")
        if not (callable(norm) or (isinstance(norm, str) and norm in NORMS)):
            raise invalid("norm", shown(norm), f"one of {list(NORMS)} or a metric, a function of two arrays")
        count = check_count("size", size, 1)
        if count > MAX_SIZE:
            raise invalid("size", count, f"at most {MAX_SIZE:.0e}")
        self._settle(
            function=function,
            sensitivity_=check_number("sensitivity", sensitivity, SMALLEST, LARGEST),
            norm=norm,
            size=count,
            neighboring_relation=check_relation(neighboring_relation),
            name=str(name) if name is not None else getattr(function, "__qualname__", type(function).__name__),
        )

    def describe(self) -> dict[str, Any]:
        """Name, declared sensitivity, norm, size and relation."""
        norm = self.norm if isinstance(self.norm, str) else getattr(self.norm, "__qualname__", "metric")
        return {
            "query": "Custom",
            "name": self.name,
            "sensitivity": self.sensitivity_,
            "norm": norm,
            "size": self.size,
            "neighboring_relation": self.neighboring_relation,
        }

    @property
    def columns(self) -> tuple[Name, ...]:
        """None that could be named beforehand."""
        return ()

    def parts(self, relation: str) -> tuple[Part, ...]:
        """The whole result as one vector."""
        declared = self.sensitivity_ * self._factor(relation)
        if not isinstance(self.norm, str):
            return (Part("custom", self.size, math.inf, math.inf, math.inf, 0.0, self._compute, declared, self.norm),)
        norms = _other_norms(declared, self.norm, self.size)
        return (Part("custom", self.size, norms["l1"], norms["l2"], norms["linf"], 0.0, self._compute),)

    def _factor(self, relation: str) -> float:
        if check_relation(relation) == self.neighboring_relation:
            return 1.0
        if self.neighboring_relation == ADD_REMOVE:
            return 2.0
        raise ConfigError(
            f"the sensitivity of {self.name!r} is declared for replace_one, which bounds nothing under add_remove: "
            "declare it with neighboring_relation='add_remove'."
        )

    def finish(self, noisy: Vectors, relation: str, records: int | None) -> Any:
        """A number for size 1, else an array (size,)."""
        return float(noisy[0][0]) if self.size == 1 else np.array(noisy[0])

    def rehearse(self, blank: Columns, relation: str, records: int | None) -> None:
        """Try the function on made-up records."""
        self._factor(relation)
        made_up = blank.blank(records or 0)
        try:
            found = np.asarray(self.function(made_up.as_dict()), dtype=np.float64)
        except Exception as error:
            raise ConfigError(
                f"the function {self.name!r} fails on {made_up.records} made-up records ({type(error).__name__}: "
                f"{error}); nothing was charged. It must give {self.size} numbers for any records."
            ) from error
        if found.size != self.size:
            raise ConfigError(
                f"the function {self.name!r} gives {found.size} numbers on {made_up.records} made-up records instead "
                f"of size = {self.size}; nothing was charged."
            )

    def _compute(self, data: Columns) -> NDArray[np.float64]:
        try:
            with np.errstate(all="ignore"):  # a warning would tell, too
                found = np.array(self.function(data.as_dict()), dtype=np.float64).reshape(self.size)
        except BaseException as error:  # a failure would tell something of the records
            refuse_unless_a_records(error)
            return np.zeros(self.size)
        return np.where(np.isfinite(found), found, 0.0)


def _other_norms(sensitivity: float, norm: str, size: int) -> Mapping[str, float]:
    """Bounds in all norms from one: ‖x‖∞ <= ‖x‖₂ <= ‖x‖₁ <= √k‖x‖₂ <= k‖x‖∞."""
    root = math.sqrt(size)
    factors = {"l1": (1.0, 1.0, 1.0), "l2": (root, 1.0, 1.0), "linf": (float(size), root, 1.0)}[norm]
    return {name: sensitivity * factor for name, factor in zip(NORMS, factors, strict=True)}
