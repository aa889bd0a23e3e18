"""``python -m dpml.account VERB …``: privacy accounting without training.

epsilon    ε of an event at δ                  delta      δ of an event at ε
noise      the smallest noise for a target     steps      the most steps within a budget
rate       the largest sampling rate           epochs     the most epochs within a budget
group      groups of records                   compare    ε by every accountant, here and elsewhere
tradeoff   what an attacker can reach          compose    ε of several events or ledgers together
interval   a certified interval around ε

``python -m dpml.account VERB --help`` shows an example and the keys of the JSON that ``--json`` prints.  An event is
given by options or as JSON.  All ε are upper bounds in natural-log units; text rounds them up, JSON has every digit
and writes infinity as "inf".
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from dpml.account_arguments import EVENT, JUDGE, MECHANISM, SAMPLING, add_options
from dpml.errors import ConfigError, DpmlError
from dpml.pipes import reader_may_leave
from dpml.results import dumps

if TYPE_CHECKING:
    from dpml.account_words import Answer

EXAMPLES = """examples:
  python -m dpml.account epsilon --noise-multiplier 1 --sample-rate 0.01 --steps 1000 --delta 1e-5
  python -m dpml.account noise --batch-size 256 --records 60000 --epochs 20 --epsilon 3 --delta 1e-5 --json"""


@dataclass(frozen=True)
class Verb:
    """One verb: what it is for, an example, its JSON keys, the names of its options, and where it is defined."""

    text: str
    example: str
    keys: str
    options: str
    home: str

    def run(self, options: argparse.Namespace) -> Answer:
        """Do it; SciPy is loaded here, so that help comes at once."""
        module, name = self.home.split(".")
        verb: Callable[[argparse.Namespace], Answer] = getattr(import_module(f"dpml.{module}"), name)
        return verb(options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and print its answer; returns the exit status: 0, 2 for a refused argument, 130 when interrupted."""
    try:
        options = _parser().parse_args(arguments)
        answer = VERBS[options.verb].run(options)
        _write(dumps(answer.data) if options.json else "\n".join(answer.lines))
    except DpmlError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename or 'output'}: {error.strerror or error}.", file=sys.stderr)
        return 2
    except MemoryError:
        print("error: this event needs more memory than there is; try --accountant rdp.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _write(text: str) -> None:
    """Text on standard output; a reader that stops early (``head``), or none, is no error."""
    if sys.stdout is None:
        return
    with reader_may_leave():
        try:
            print(text)
        except UnicodeEncodeError:
            print(text.encode("ascii", "backslashreplace").decode())


class _Parser(argparse.ArgumentParser):
    """A parser whose refusals look like all others of this package, and that takes -1e-5 or -inf as a value."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._negative_number_matcher = re.compile(r"-(\.?\d|inf|nan)", re.IGNORECASE)

    def error(self, message: str) -> NoReturn:
        found = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        near = difflib.get_close_matches(found.group(1), re.findall(r"[\w-]+", found.group(2)), 1) if found else []
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{message}.{hint} See {self.prog} --help.")

    def print_help(self, file: Any = None) -> None:
        _write(self.format_help().rstrip())


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        prog="python -m dpml.account", description=__doc__, epilog=EXAMPLES, formatter_class=raw, allow_abbrev=False
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=_Parser)
    for name, verb in VERBS.items():
        epilog = f"example:\n  python -m dpml.account {verb.example}\n\nJSON keys: {verb.keys}"
        part = verbs.add_parser(
            name, help=verb.text, description=verb.text, epilog=epilog, formatter_class=raw, allow_abbrev=False
        )
        add_options(part, verb.options)
        part.add_argument("--json", action="store_true", help="print JSON: every digit, stable keys")
    return parser


_SGD = "--noise-multiplier 1 --sample-rate 0.01 --steps 10000"
_JUDGED = "accountant, neighboring_relation"
VERBS: dict[str, Verb] = {
    "epsilon": Verb(
        "ε of an event at δ, with the certified interval around the smallest ε.",
        f"epsilon {_SGD} --delta 1e-5",
        f"epsilon, delta, {_JUDGED}, accountant_used, interval {{low, high, accountant}}, event",
        f"{EVENT} --delta! {JUDGE}",
        "account_verbs.epsilon_verb",
    ),
    "delta": Verb(
        "δ of an event at ε.",
        f"delta {_SGD} --epsilon 2",
        f"delta, epsilon, {_JUDGED}, interval {{low, high}}, event",
        f"{EVENT} --epsilon! {JUDGE}",
        "account_verbs.delta_verb",
    ),
    "noise": Verb(
        "The smallest noise that meets a target; with --event all noise of the event is multiplied by one factor.",
        "noise --batch-size 256 --records 60000 --epochs 20 --epsilon 3 --delta 1e-5",
        f"noise_multiplier (or noise_factor), target, {_JUDGED}, epsilon and delta (or advantage and tpr_at_fpr), "
        "steps (not with --event), event",
        f"{MECHANISM} {SAMPLING} --steps --epochs --epsilon --delta --advantage --tpr --fpr {JUDGE}",
        "account_verbs.noise_verb",
    ),
    "steps": Verb(
        "The most steps within (ε, δ).",
        "steps --noise-multiplier 1 --sample-rate 0.01 --epsilon 3 --delta 1e-5",
        f"steps, epochs (null without sampling), epsilon, delta, {_JUDGED}, event",
        f"{MECHANISM} --noise-multiplier {SAMPLING} --epsilon! --delta! --limit {JUDGE}",
        "account_verbs.steps_verb",
    ),
    "rate": Verb(
        "The largest Poisson sampling rate within (ε, δ).",
        "rate --noise-multiplier 1 --steps 2000 --records 60000 --epsilon 3 --delta 1e-5",
        f"sample_rate, batch_size (null without --records), epsilon, delta, {_JUDGED}, event",
        f"{MECHANISM} --noise-multiplier --records --steps --epsilon! --delta! {JUDGE}",
        "account_verbs.rate_verb",
    ),
    "epochs": Verb(
        "The most epochs (and whole steps) within (ε, δ).",
        "epochs --noise-multiplier 1 --batch-size 600 --records 60000 --epsilon 3 --delta 1e-5",
        f"steps, epochs, epsilon, delta, {_JUDGED}, event",
        f"{MECHANISM} --noise-multiplier {SAMPLING} --epsilon! --delta! --limit {JUDGE}",
        "account_verbs.epochs_verb",
    ),
    "group": Verb(
        "ε for groups of records, or the largest group within (ε, δ).",
        "group --noise-multiplier 50 --steps 10 --size 4 --delta 1e-5",
        f"size, epsilon, delta, {_JUDGED}, event",
        f"{EVENT} --size --epsilon --delta! {JUDGE}",
        "account_verbs.group_verb",
    ),
    "compare": Verb(
        "ε by every accountant of this package and by those of opacus and dp-accounting where they are installed.",
        f"compare {_SGD} --delta 1e-5",
        "delta, neighboring_relation, smallest_sound, interval {low, high}, epsilon {name: ε or reason}, rows [{name, "
        "kind, epsilon, ratio, seconds, note}], event",
        f"{EVENT} --delta! --relation --no-peers --timeout",
        "account_compare.compare_verb",
    ),
    "tradeoff": Verb(
        "The most that an attacker can reach: advantage, true-positive rates, beliefs; the curve as PNG or CSV.",
        f"tradeoff {_SGD} --output curve.png --output curve.csv",
        "advantage, tpr_at_fpr {fpr: tpr}, accuracy, prior, posterior, posterior_of_output, delta, "
        "neighboring_relation, curve {type1_errors, type2_errors}, files, event",
        f"{EVENT} --output --picture --points --rates --prior --delta=1e-5 --relation",
        "account_compare.tradeoff_verb",
    ),
    "compose": Verb(
        "ε of several events, ledgers or runs on the same data together.",
        "compose first.json runs/adult/release/ledger.jsonl --delta 1e-5",
        f"epsilon, delta, {_JUDGED}, accountant_used, interval {{low, high, accountant}}, parts [{{source, epsilon, "
        "event}]",
        f"FILE --delta! {JUDGE}",
        "account_compare.compose_verb",
    ),
    "interval": Verb(
        "A certified interval around the smallest ε of an event.",
        f"interval {_SGD} --delta 1e-5",
        "low, high, width, accountant, delta, neighboring_relation, event",
        f"{EVENT} --delta! --relation",
        "account_verbs.interval_verb",
    ),
}


if __name__ == "__main__":
    sys.exit(main())
