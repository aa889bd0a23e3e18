"""``python -m dpml.sample_size n=… d=… epsilon=… delta=… [excess_risk=…]``: the rule solved for what is left out.

With all of n, d, epsilon and delta given it prints the full guidance, for ``excess_risk`` = 0.05 unless given.
With one of n, d, epsilon left out it solves for that one; the result always names the rule it comes from.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from typing import Any

from dpml.accounting.sample_size import RULE, guidance, solve
from dpml.errors import ConfigError, DpmlError
from dpml.results import dumps

_NAMES = ("n", "d", "epsilon", "delta", "excess_risk", "neighboring_relation", "norm_bound")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the guidance or the missing quantity; returns the exit status (2 for bad arguments)."""
    parser = argparse.ArgumentParser(prog="python -m dpml.sample_size", description=__doc__)
    parser.add_argument("values", nargs="*", metavar="name=value", help=f"names: {', '.join(_NAMES)}")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    try:
        facts = _answer(_parse(options.values))
    except DpmlError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(dumps(facts) if options.json else facts["text"])
    return 0


def _parse(values: Sequence[str]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for item in values:
        name, sign, text = item.partition("=")
        if not sign or name not in _NAMES:
            raise ConfigError(f"{item!r} is not name=value with a name among {list(_NAMES)}.")
        if name in out:
            raise ConfigError(f"{name} is given twice.")
        try:
            out[name] = text if name == "neighboring_relation" else float(text)
        except ValueError:
            raise ConfigError(f"{name} = {text!r} is not a number.") from None
    if "delta" not in out:
        raise ConfigError("delta is missing: give delta=1e-5, say.")
    return out


def _answer(given: dict[str, Any]) -> dict[str, Any]:
    missing = [name for name in ("n", "d", "epsilon") if name not in given]
    if not missing:
        extra = {key: given[key] for key in ("excess_risk", "neighboring_relation", "norm_bound") if key in given}
        return guidance(
            n_declared=_whole("n", given["n"]),
            n_features=_whole("d", given["d"]),
            epsilon=given["epsilon"],
            delta=given["delta"],
            **extra,
        )
    name, value = solve(
        n=given.get("n"),
        d=given.get("d"),
        epsilon=given.get("epsilon"),
        delta=given["delta"],
        excess_risk=given.get("excess_risk", 0.05),
    )
    rounded: float = {"n": math.ceil, "d": math.floor}.get(name, float)(value)
    shown = f"{rounded:,}" if isinstance(rounded, int) else f"{rounded:.6g}"
    return {"rule": RULE, "solved_for": name, "value": rounded, "text": f"{name} = {shown}   (rule {RULE})"}


def _whole(name: str, value: float) -> int:
    if value != value or math.isinf(value) or value != int(value):
        raise ConfigError(f"{name} = {value!r} is not allowed: it must be a whole number.")
    return int(value)


if __name__ == "__main__":
    sys.exit(main())
