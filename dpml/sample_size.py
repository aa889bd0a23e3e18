"""``python -m dpml.sample_size NAME=VALUE …``: how many records a private model needs, or what a table allows.

Give three of n, d, epsilon and excess_risk, and delta; the one that is left out is solved for.
"""

from __future__ import annotations

import argparse
import difflib
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpml.errors import ConfigError, DpmlError, invalid
from dpml.pipes import reader_may_leave

DESCRIPTION = """How many records a private model needs.  Give three of n, d, epsilon and excess_risk, and delta;
the one that is left out is solved for.  The classical rule n > sqrt(d) sqrt(log(1/delta)) / (epsilon excess_risk^2)
stands beside a sharper bound for each method, and beside the mean of one yes/no question by randomized response
and of one number in [0, 1] by Laplace noise.  Public values go in; no data are read.

  n                     records
  d                     features, the constant column included
  epsilon, delta        the budget
  excess_risk           loss that one would accept above the best model's; for the means: their error
                        (0.05, unless it is what is solved for)
  solution_norm         R, norm of the solution one would accept (15)
  norm_bound            bound on a row's norm (1)
  neighboring_relation  add_remove or replace_one (add_remove)
  confidence            of the means (0.95)

n, d, epsilon and excess_risk may have several values, comma between: a table.
"""

EXAMPLES = """examples:
  python -m dpml.sample_size d=133 epsilon=1 delta=1e-5 excess_risk=0.05                  solves for n
  python -m dpml.sample_size n=36000 d=133 epsilon=1 delta=1e-5                           solves for excess_risk
  python -m dpml.sample_size n=36000 d=133 delta=1e-5 excess_risk=0.02                    solves for epsilon
  python -m dpml.sample_size n=36000 epsilon=1 delta=1e-5 excess_risk=0.02 --json         solves for d
  python -m dpml.sample_size d=133 epsilon=0.1,1,10 delta=1e-5 excess_risk=0.02,0.05      a table
  python -m dpml.sample_size d=133 epsilon=0.1,10 delta=1e-5 --plot n.png                 n against epsilon

exit status: 0, or 2 for a value that is not allowed or that nothing reaches"""

SOLVABLE = ("n", "d", "epsilon", "excess_risk")
SETTINGS = ("delta", "solution_norm", "norm_bound", "confidence")
NAMES = (*SOLVABLE, *SETTINGS, "neighboring_relation")
DEFAULT_RISK = 0.05
MOST_ROWS = 1000


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the answer or a table of answers; returns the exit status (2 for bad arguments)."""
    parser = argparse.ArgumentParser(
        prog="python -m dpml.sample_size",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("values", nargs="*", metavar="NAME=VALUE", help="see above")
    parser.add_argument("--json", action="store_true", help="print JSON: every digit, stable keys")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw n against epsilon at this excess_risk")
    options = parser.parse_args(arguments)
    try:
        given, settings, default_risk = parse(options.values)
        from dpml import sample_size_answers as answers  # numpy and scipy: not for --help

        if options.plot is not None:
            from dpml.sample_size_plot import check_plot, write_plot

            check_plot(options.plot, given)
        found = answers.solve_all(given, settings, default_risk=default_risk)
        if options.plot is not None:
            write_plot(options.plot, given, settings)
    except DpmlError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from dpml.results import dumps

    with reader_may_leave():
        if options.json:
            print(dumps(answers.as_json(found)))
        else:
            print(answers.as_text(found))
            if options.plot is not None:
                print(f"plot: {options.plot}")
    return 0


def parse(words: Sequence[str]) -> tuple[dict[str, list[float]], dict[str, Any], bool]:
    """(values of the solvable names, the settings, whether excess_risk is the default) of the command line's words.

    Raises:
        ConfigError: an unknown name, a value out of range, or not exactly one name left out.
    """
    given: dict[str, list[float]] = {}
    settings: dict[str, Any] = {}
    for word in words:
        name, sign, text = word.partition("=")
        _check_name(name, sign, word)
        if name in given or name in settings:
            raise ConfigError(f"{name} is given twice. For several values put commas between: {name}=1,2.")
        if name in SOLVABLE:
            given[name] = [_number(name, item) for item in text.split(",")]
        else:
            settings[name] = text if name == "neighboring_relation" else _number(name, text)
    if not words:
        raise ConfigError("nothing is given. For example: d=133 epsilon=1 delta=1e-5 (see --help)")
    if "delta" not in settings:
        raise ConfigError("delta is missing. Give delta=1e-5, say: far below 1/n.")
    default_risk = "excess_risk" not in given and len(given) < len(SOLVABLE) - 1
    if default_risk:
        given["excess_risk"] = [DEFAULT_RISK]
    missing = [name for name in SOLVABLE if name not in given]
    if not missing:
        raise ConfigError(
            "n, d, epsilon and excess_risk are all given, so there is nothing to solve for. Leave one of them out: "
            "n, say, to see whether yours is enough."
        )
    if len(missing) > 1:
        raise ConfigError(f"{' and '.join(missing)} are missing, but one thing is solved for. Give all but one.")
    for count in given.get("n", []):
        if settings["delta"] >= 1.0 / count:
            raise invalid("delta", settings["delta"], f"below 1/n = {1.0 / count:.3g}", "Give 0.1/n or less.")
    if math.prod(map(len, given.values())) > MOST_ROWS:
        raise ConfigError(f"that is a table of more than {MOST_ROWS} rows. Give fewer values.")
    return given, settings, default_risk


def _check_name(name: str, sign: str, word: str) -> None:
    if sign and name in NAMES:
        return
    usual = {"alpha": "excess_risk", "eps": "epsilon", "relation": "neighboring_relation", "r": "solution_norm"}
    near = [usual[name.lower()]] if name.lower() in usual else difflib.get_close_matches(name.strip("-"), NAMES, 1)
    hint = f" Did you mean {near[0]}=…?" if near else ""
    raise ConfigError(f"{word!r} is not NAME=VALUE with a name among {', '.join(NAMES)}.{hint}")


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise invalid(name, text, "a number") from None
    whole = name in ("n", "d")
    allowed = "a whole number from 1 to 1e15" if whole else "a number from 1e-12 to 1e12"
    if name in ("delta", "confidence"):
        allowed = "a number above 0 and below 1" if name == "confidence" else "a number from 1e-300 to below 1"
    low, high = (1.0, 1e15) if whole else (1e-12, 1e12)
    if name in ("delta", "confidence"):
        low, high = (1e-300, math.nextafter(1.0, 0.0))
    if not low <= value <= high or (whole and value != int(value)):
        raise invalid(name, text, allowed)
    return value


if __name__ == "__main__":
    sys.exit(main())
