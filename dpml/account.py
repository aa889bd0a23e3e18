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
import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

from dpml import accounting as acc
from dpml.account_peers import Row, ask_peers
from dpml.accounting import api, calibration, exact, tradeoffs
from dpml.accounting.events import check_count, check_number
from dpml.accounting.ledger import strict_json
from dpml.errors import ConfigError, DpmlError, UnsupportedEventError, invalid
from dpml.report.formats import general, relation_words, upper
from dpml.results import dumps, to_jsonable, write_atomic

MECHANISMS = (
    "gaussian",
    "laplace",
    "discrete_gaussian",
    "discrete_laplace",
    "unequal_gaussian",
    "randomized_response",
    "exponential",
    "permute_and_flip",
    "report_noisy_max",
    "random_row",
    "objective_perturbation",
    "pure",
    "epsilon_delta",
    "zcdp",
    "gdp",
)
NOISE = {
    "gaussian": "noise_multiplier",
    "laplace": "noise_multiplier",
    "discrete_gaussian": "noise_std",
    "discrete_laplace": "noise_scale",
}
PICTURES = ("tradeoff", "attack", "profile")
_SCALED = ("noise_multiplier", "noise_std", "noise_scale")  # by which the noise of an event is multiplied
_INDENT = 12
_LONGEST_NOTE = 84  # of a line of the comparison


@dataclass(frozen=True)
class Answer:
    """What a verb found: ``data`` for ``--json``, ``lines`` for a person."""

    data: dict[str, Any]
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Verb:
    """One verb: what it is for, an example, its JSON keys, the names of its options, and what it does."""

    text: str
    example: str
    keys: str
    options: str
    run: Callable[[argparse.Namespace], Answer]


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
    try:
        try:
            print(text)
        except UnicodeEncodeError:
            print(text.encode("ascii", "backslashreplace").decode())
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# --------------------------------------------------------------------------------------------------- the options


class _Parser(argparse.ArgumentParser):
    """A parser whose refusals look like all others of this package."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}. See {self.prog} --help.")

    def print_help(self, file: Any = None) -> None:
        _write(self.format_help().rstrip())


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog="python -m dpml.account", description=__doc__, formatter_class=raw, allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=_Parser)
    for name, verb in VERBS.items():
        epilog = f"example:\n  python -m dpml.account {verb.example}\n\nJSON keys: {verb.keys}"
        part = verbs.add_parser(
            name, help=verb.text, description=verb.text, epilog=epilog, formatter_class=raw, allow_abbrev=False
        )
        _add(part, verb.options)
        part.add_argument("--json", action="store_true", help="print JSON: every digit, stable keys")
    return parser


def _number(text: str) -> float:
    """A number, or a fraction such as 256/60000."""
    try:
        return float(Fraction(text)) if "/" in text else float(text)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number (1e-5, 0.01 and 256/60000 are)") from None


def _fraction(text: str) -> Fraction:
    """The exact value of a finite number or fraction, so that 10 epochs at rate 0.01 are 1000 steps."""
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number (0.01 and 256/60000 are)") from None


def _whole(text: str) -> int:
    """A whole number; 1e4 is one too."""
    try:
        value = Fraction(text)
    except (ValueError, ZeroDivisionError, OverflowError):
        value = Fraction(1, 2)
    if value.denominator != 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number (10000 and 1e4 are)")
    return int(value)


_OPTIONS: dict[str, dict[str, Any]] = {
    "--event": {"metavar": "JSON|@FILE", "help": "the event as JSON, in place of the options that describe it"},
    "--mechanism": {"choices": MECHANISMS, "metavar": "NAME", "help": f"one of {', '.join(MECHANISMS)}"},
    "--parameter": {"action": "append", "default": [], "metavar": "NAME=VALUE", "help": "of the mechanism"},
    "--noise-multiplier": {"type": _number, "metavar": "X", "help": "noise std (Laplace: scale) / norm of one record"},
    "--sample-rate": {"type": _fraction, "metavar": "Q", "help": "Poisson sampling probability: 0.01 or 256/60000"},
    "--batch-size": {"type": _fraction, "metavar": "B", "help": "expected batch, in place of Q = B/N; with --records"},
    "--records": {"type": _whole, "metavar": "N", "help": "public number of records"},
    "--steps": {"type": _whole, "metavar": "T", "help": "number of releases (default 1)"},
    "--epochs": {"type": _fraction, "metavar": "E", "help": "in place of --steps: T = E/Q, rounded up"},
    "--epsilon": {"type": _number, "metavar": "ε", "help": "ε, in natural-log units"},
    "--delta": {"type": _number, "metavar": "δ", "help": "failure probability, far below 1/records"},
    "--advantage": {"type": _number, "metavar": "A", "help": "target: true- minus false-positive rate of any attacker"},
    "--tpr": {"type": _number, "metavar": "TPR", "help": "target: true-positive rate of any attacker, with --fpr"},
    "--fpr": {"type": _number, "metavar": "FPR", "help": "target: at this false-positive rate, with --tpr"},
    "--size": {"type": _whole, "metavar": "K", "help": "records that come or change together: gives ε"},
    "--limit": {"type": _whole, "default": 10**9, "metavar": "T", "help": "try no more steps (default 1e9)"},
    "--rates": {"type": _number, "nargs": "+", "default": [0.001, 0.01, 0.1], "metavar": "FPR"}
    | {"help": "false-positive rates (default 0.001 0.01 0.1)"},
    "--prior": {"type": _number, "default": 0.5, "metavar": "P", "help": "belief before the release (default 0.5)"},
    "--output": {"type": Path, "action": "append", "default": [], "metavar": "FILE"}
    | {"help": "write the curve to FILE.png or FILE.csv; may be repeated"},
    "--picture": {"choices": PICTURES, "default": "tradeoff", "help": "what a PNG shows (default tradeoff)"},
    "--points": {"type": _whole, "default": 201, "metavar": "N", "help": "points of the curve (default 201)"},
    "--no-peers": {"action": "store_false", "dest": "peers", "help": "leave other packages out"},
    "--timeout": {"type": _number, "default": 60.0, "metavar": "S", "help": "seconds for each peer (default 60)"},
    "--accountant": {"choices": acc.ACCOUNTANTS, "default": "best", "help": "who bounds ε (default best)"},
    "--relation": {"choices": acc.RELATIONS, "dest": "neighboring_relation"}
    | {"help": "what neighbours differ in (default add_remove)"},
    "FILE": {"nargs": "+", "help": "an event or a list of events as JSON, a ledger.jsonl, or a run folder"},
}
_MECHANISM = "--event --mechanism --parameter"
_SAMPLING = "--sample-rate --batch-size --records"
_EVENT = f"{_MECHANISM} --noise-multiplier {_SAMPLING} --steps --epochs"
_JUDGE = "--accountant --relation"


def _add(part: argparse.ArgumentParser, options: str) -> None:
    """The options by name; with ``!`` required, with ``=…`` another default."""
    for word in options.split():
        name, _, default = word.rstrip("!").partition("=")
        details = dict(_OPTIONS[name])
        names = [name, "--neighboring-relation"] if name == "--relation" else [name]
        if word.endswith("!"):
            details["required"] = True
        if default:
            details |= {"default": float(default), "help": f"{details['help']} (default {default})"}
        part.add_argument(*names, **details)


def _relation(options: argparse.Namespace) -> str:
    return options.neighboring_relation or acc.ADD_REMOVE


def _judge(options: argparse.Namespace) -> dict[str, Any]:
    return {"accountant": options.accountant, "neighboring_relation": _relation(options)}


# ---------------------------------------------------------------------------------------------------- the event


def _event(options: argparse.Namespace) -> acc.Event:
    """The event of the options, its steps included."""
    return _times(_step(options, getattr(options, "noise_multiplier", None)), _steps_of(options))


def _times(event: acc.Event, steps: int | None) -> acc.Event:
    return event if steps is None else acc.SelfComposed(event, steps)


def _step(options: argparse.Namespace, noise: float | None, rate: float | None = None) -> acc.Event:
    """One release; ``noise`` and ``rate`` are the options' or what a calibration tries."""
    if options.event is not None:
        _refuse_with_event(options)
        return _read_event(options.event)
    event = _mechanism(options, noise)
    if rate is None:
        exact_rate = _rate(options)
        rate = None if exact_rate is None else float(exact_rate)
    return event if rate is None else acc.PoissonSampled(rate, event)


def _refuse_with_event(options: argparse.Namespace) -> None:
    for name in ("noise_multiplier", "mechanism", "sample_rate", "batch_size", "records", "epochs"):
        if getattr(options, name, None) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"--event excludes {flag}: write it into the event's JSON, or leave --event out.")
    if options.parameter:
        raise ConfigError("--event excludes --parameter: write it into the event's JSON, or leave --event out.")


def _mechanism(options: argparse.Namespace, noise: float | None) -> acc.Event:
    name = options.mechanism or "gaussian"
    data: dict[str, Any] = {"type": name}
    for text in options.parameter:
        key, sign, value = text.partition("=")
        if not sign:
            raise invalid("--parameter", text, "NAME=VALUE, e.g. epsilon=0.5")
        data[key.strip().replace("-", "_")] = _value(value)
    field = NOISE.get(name)
    if noise is not None:
        if field is None:
            raise ConfigError(
                f"--noise-multiplier = {noise!r} is not allowed for mechanism {name!r}: it is for {list(NOISE)}. "
                "Give --parameter NAME=VALUE."
            )
        sensitivity = data.get("sensitivity", 1)
        data[field] = noise * sensitivity if isinstance(sensitivity, int) else noise
    elif field is not None and field not in data:
        raise ConfigError(
            f"the event is missing: give --noise-multiplier X for mechanism {name!r} (with --sample-rate and --steps "
            "where there are several releases), another --mechanism NAME, or --event JSON."
        )
    return acc.from_json(data)


def _value(text: str) -> Any:
    try:
        return strict_json(text)
    except (ValueError, RecursionError):
        return text.strip()


def _rate(options: argparse.Namespace) -> Fraction | None:
    """q as given, or batch size ÷ records, exactly; None where nothing is sampled."""
    rate, batch = getattr(options, "sample_rate", None), getattr(options, "batch_size", None)
    if rate is not None and batch is not None:
        raise ConfigError("--sample-rate excludes --batch-size: give one of both.")
    if batch is not None:
        if options.records is None:
            raise ConfigError(f"--batch-size = {batch} needs --records N, the number of records: Q = B/N.")
        records = check_count("--records", options.records, 1)
        if not 0 <= batch <= records:
            raise invalid("--batch-size", float(batch), f"a number >= 0 and <= --records = {records}")
        return batch / records
    if rate is not None:
        check_number("--sample-rate", float(rate), 0.0, 1.0)
    return rate


def _steps_of(options: argparse.Namespace) -> int | None:
    steps, epochs = getattr(options, "steps", None), getattr(options, "epochs", None)
    if epochs is None:
        return None if steps is None else check_count("--steps", steps)
    if steps is not None:
        raise ConfigError("--epochs excludes --steps: give one of both.")
    rate = _rate(options)
    if rate is None or rate == 0:
        raise ConfigError("--epochs needs --sample-rate Q (or --batch-size and --records), Q > 0: steps = epochs/Q.")
    if epochs < 0:
        raise invalid("--epochs", float(epochs), "a number >= 0")
    return check_count("steps = epochs / sample rate", math.ceil(epochs / rate))


def _load(text: str) -> tuple[str, Any]:
    """(name, parsed JSON) of inline JSON, FILE or @FILE."""
    name, body = "the event", text
    if not text.lstrip().startswith(("{", "[")):
        name = text.removeprefix("@")
        body = _text_of(Path(name))
    try:
        return name, strict_json(body)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{name} is not JSON that can be used: {error or 'nested too deeply'}. Give an object such as "
            '{"type": "gaussian", "noise_multiplier": 1.0}, or @FILE.'
        ) from None


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the event file {str(path)!r}: {error.strerror or error}.") from None
    except ValueError:
        raise ConfigError(f"cannot read the event file {str(path)!r}: it is not UTF-8 text.") from None


def _read_event(text: str) -> acc.Event:
    name, data = _load(text)
    if isinstance(data, list):
        raise ConfigError(
            f"{name} is a list: --event takes one event. Use the verb compose, or an event of type 'composed'."
        )
    return acc.from_json(data)


def describe(event: acc.Event) -> str:
    """An event in words, ``1,000 × [gaussian (noise multiplier 1), Poisson-sampled at 0.01]`` say."""
    if isinstance(event, acc.SelfComposed):
        return f"{event.count:,} × [{describe(event.event)}]"
    if isinstance(event, acc.PoissonSampled):
        return f"{describe(event.event)}, Poisson-sampled at {event.sampling_probability:.9g}"
    if isinstance(event, acc.Composed):
        shown = [describe(part) for part in event.events[:3]]
        rest = len(event.events) - 3
        return " + ".join([*shown, f"{rest} more"] if rest > 0 else shown) or "nothing"
    values = {key: value for key, value in event.to_json().items() if key not in ("type", "event")}
    parts = [
        f"{key.replace('_', ' ')} {value:.9g}" if isinstance(value, float) else f"{key.replace('_', ' ')} {value}"
        for key, value in values.items()
    ]
    inner = getattr(event, "event", None)
    name = event.type.replace("_", " ") + ("" if inner is None else f" of [{describe(inner)}]")
    return f"{name} ({', '.join(parts)})" if parts else name


# ------------------------------------------------------------------------------------------------------ in words


def lower(value: float, digits: int = 6) -> str:
    """A lower bound with ``digits`` significant digits, rounded down."""
    return upper(-value, digits).lstrip("-−")


def _row(name: str, text: str) -> str:
    return f"  {name:<{_INDENT}}{text}"


def _common(options: argparse.Namespace, event: acc.Event, name: str = "event") -> tuple[str, str]:
    relation = _relation(options)
    return _row("relation", f"{relation_words(relation)} ({relation})"), _row(name, describe(event))


def _between(low: float, high: float) -> str:
    unknown = ": no lower end is known" if low == 0 < high else ""
    return f"[{lower(low, 9)}, {upper(high, 9)}]{unknown}"


def _epsilon_lines(data: Mapping[str, Any], event: acc.Event) -> tuple[str, ...]:
    value, used, asked = data["epsilon"], data["accountant_used"], data["accountant"]
    ends = data["interval"]
    times = f"e^ε ≤ {upper(math.exp(value), 3)}" if value < 700 else "no useful bound"
    head = f"ε ≤ {upper(value, 6)} at δ = {general(data['delta'])}: an upper bound, in natural-log units"
    if math.isinf(value):
        head = f"no finite ε holds, or none is proved, at δ = {general(data['delta'])}"
    return (
        head,
        _row("certified", f"the smallest ε of this event lies in {_between(ends['low'], ends['high'])}"),
        _row("accountant", used if used == asked else f"{used} (the smallest of all, by {asked})"),
        _row("relation", f"{relation_words(data['neighboring_relation'])} ({data['neighboring_relation']})"),
        _row("event", describe(event)),
        _row("meaning", f"P[S] ≤ e^ε·P'[S] + δ for every set S of outcomes of neighbouring data sets; {times}"),
    )


def _certified(event: acc.Event, delta: float, relation: str) -> dict[str, Any]:
    found = api.interval(event, delta, neighboring_relation=relation)
    return {"low": found.low, "high": found.high, "accountant": found.accountant}


# ------------------------------------------------------------------------------------------------------ the verbs


def _epsilon(options: argparse.Namespace) -> Answer:
    event = _event(options)
    data = _epsilon_of(event, options)
    return Answer({**data, "event": event.to_json()}, _epsilon_lines(data, event))


def _epsilon_of(event: acc.Event, options: argparse.Namespace) -> dict[str, Any]:
    judge = _judge(options)
    ends = None
    if options.accountant == "best":
        ends = _certified(event, options.delta, judge["neighboring_relation"])
        value, used = ends["high"], ends["accountant"]
    else:
        value, used = acc.epsilon(event, options.delta, **judge), options.accountant
        ends = _certified(event, options.delta, judge["neighboring_relation"])
    return {"epsilon": value, "delta": options.delta, **judge, "accountant_used": used, "interval": ends}


def _delta(options: argparse.Namespace) -> Answer:
    event = _event(options)
    value = acc.delta(event, options.epsilon, **_judge(options))
    low = 0.0
    with contextlib.suppress(UnsupportedEventError):
        low = min(exact.delta_interval(event, options.epsilon, _relation(options))[0], value)
    data = {"delta": value, "epsilon": options.epsilon, **_judge(options), "interval": {"low": low, "high": value}}
    lines = (
        f"δ ≤ {upper(value, 6)} at ε = {general(options.epsilon)}: an upper bound",
        _row("certified", f"the smallest δ of this event lies in {_between(low, value)}"),
        _row("accountant", options.accountant),
        *_common(options, event),
    )
    return Answer({**data, "event": event.to_json()}, lines)


def _interval(options: argparse.Namespace) -> Answer:
    event = _event(options)
    found = api.interval(event, options.delta, neighboring_relation=_relation(options))
    data = {
        "low": found.low,
        "high": found.high,
        "width": found.width,
        "accountant": found.accountant,
        "delta": options.delta,
        "neighboring_relation": _relation(options),
        "event": event.to_json(),
    }
    lines = (
        f"the smallest ε at δ = {general(options.delta)} lies in {_between(found.low, found.high)}",
        _row("upper end", f"proved by {found.accountant}"),
        *_common(options, event),
    )
    return Answer(data, lines)


def _noise(options: argparse.Namespace) -> Answer:
    make = _scaled(options) if options.event is not None else _with_noise(options)
    target = {key: getattr(options, key) for key in ("epsilon", "delta", "advantage", "tpr", "fpr")}
    target = {key: value for key, value in target.items() if value is not None}
    value = acc.calibrate(make, **target, **_judge(options))
    event = make(value)
    name = "noise_factor" if options.event is not None else "noise_multiplier"
    data: dict[str, Any] = {name: value, "target": target, **_judge(options)}
    words = "every noise of the event times" if options.event is not None else "noise multiplier"
    lines = [f"{words} {upper(value, 8)}: the smallest (to 1e-4) that meets the target, rounded up"]
    if options.epsilon is not None:
        data["epsilon"], data["delta"] = acc.epsilon(event, options.delta, **_judge(options)), options.delta
        lines.append(_row("reached", f"ε ≤ {upper(data['epsilon'], 6)} at δ = {general(options.delta)}"))
    else:
        fpr = 0.01 if options.fpr is None else options.fpr
        metrics = tradeoffs.attack_metrics(event, false_positive_rates=[fpr], neighboring_relation=_relation(options))
        data["advantage"] = metrics.advantage
        data["tpr_at_fpr"] = {repr(rate): tpr for rate, tpr in metrics.tpr_at_fpr.items()}
        lines.append(
            _row("reached", f"advantage ≤ {upper(metrics.advantage, 6)}; true-positive rate ≤ ")
            + f"{upper(metrics.tpr_at_fpr[fpr], 6)} at a false-positive rate of {general(fpr)}"
        )
    if options.event is None:
        data["steps"] = 1 if _steps_of(options) is None else _steps_of(options)
    return Answer({**data, "event": event.to_json()}, (*lines, *_common(options, event)))


def _with_noise(options: argparse.Namespace) -> Callable[[float], acc.Event]:
    name = options.mechanism or "gaussian"
    if name not in NOISE:
        raise invalid("--mechanism", name, f"one of {list(NOISE)}", "The others have no noise multiplier.")
    steps = _steps_of(options)
    return lambda noise: _times(_step(options, noise), steps)


def _scaled(options: argparse.Namespace) -> Callable[[float], acc.Event]:
    """The event of ``--event`` with all its noise multiplied, as a function of the factor."""
    _refuse_with_event(options)
    data, steps = _read_event(options.event).to_json(), _steps_of(options)
    if _with_factor(data, 2.0) == data:
        raise ConfigError(f"--event has no noise to calibrate: no {' or '.join(_SCALED)} above 0 occurs in it.")
    return lambda factor: _times(acc.from_json(_with_factor(data, factor)), steps)


def _with_factor(data: Any, factor: float) -> Any:
    if isinstance(data, list):
        return [_with_factor(part, factor) for part in data]
    if not isinstance(data, dict) or data.get("type") == "unequal_gaussian":
        return data
    return {key: value * factor if key in _SCALED else _with_factor(value, factor) for key, value in data.items()}


def _steps(options: argparse.Namespace) -> Answer:
    step = _step(options, options.noise_multiplier)
    value = acc.calibrate_steps(
        lambda count: acc.SelfComposed(step, count),
        epsilon=options.epsilon,
        delta=options.delta,
        limit=options.limit,
        **_judge(options),
    )
    return _steps_answer(options, step, value, None if options.event else _rate(options))


def _epochs(options: argparse.Namespace) -> Answer:
    step, rate = _step(options, options.noise_multiplier), _rate(options)
    if options.event is not None:
        raise ConfigError("--event is not allowed for epochs: it has no sampling rate to count by. Use the verb steps.")
    if rate is None or rate == 0:
        raise ConfigError("epochs needs --sample-rate Q (or --batch-size and --records), Q > 0: epochs = steps·Q.")
    found = calibration.calibrate_epochs(
        lambda count: acc.SelfComposed(step, count),
        float(rate),
        epsilon=options.epsilon,
        delta=options.delta,
        limit=options.limit,
        **_judge(options),
    )
    return _steps_answer(options, step, found.steps, rate)


def _steps_answer(options: argparse.Namespace, step: acc.Event, steps: int, rate: Fraction | None) -> Answer:
    judge = _judge(options)
    reached = acc.epsilon(acc.SelfComposed(step, steps), options.delta, **judge)
    epochs = None if rate is None else float(steps * rate)
    data = {"steps": steps, "epochs": epochs, "epsilon": reached, "delta": options.delta, **judge}
    passes = "" if epochs is None else f" = {general(epochs)} epochs"
    lines = [f"{steps:,} steps{passes}: the most that fit in ε = {general(options.epsilon)}, rounded down"]
    if steps == options.limit:
        lines[0] = f"{steps:,} steps{passes}: all that were tried fit; raise --limit to try more"
    if steps == 0:
        single = acc.epsilon(step, options.delta, **judge)
        lines.append(_row("reason", f"a single step costs ε ≤ {upper(single, 6)} already"))
    lines += [
        _row("reached", f"ε ≤ {upper(reached, 6)} at δ = {general(options.delta)}"),
        *_common(options, step, "one step"),
    ]
    return Answer({**data, "event": acc.SelfComposed(step, steps).to_json()}, tuple(lines))


def _rate_verb(options: argparse.Namespace) -> Answer:
    if options.event is not None:
        raise ConfigError("--event is not allowed for rate: give the mechanism by options; its rate is what is sought.")
    steps = _steps_of(options)

    def make(rate: float) -> acc.Event:
        return _times(_step(options, options.noise_multiplier, rate), steps)

    value = calibration.calibrate_sample_rate(make, epsilon=options.epsilon, delta=options.delta, **_judge(options))
    event = make(value)
    reached = acc.epsilon(event, options.delta, **_judge(options))
    batch = None if options.records is None else math.floor(value * check_count("--records", options.records, 1))
    data = {"sample_rate": value, "batch_size": batch, "epsilon": reached, "delta": options.delta, **_judge(options)}
    size = "" if batch is None else f", batches of {batch:,} in expectation"
    lines = (
        f"sampling rate {lower(value, 8)}{size}: the largest (to 1e-4) within ε = {general(options.epsilon)}, "
        "rounded down",
        _row("reached", f"ε ≤ {upper(reached, 6)} at δ = {general(options.delta)}"),
        *_common(options, event),
    )
    return Answer({**data, "event": event.to_json()}, lines)


def _group(options: argparse.Namespace) -> Answer:
    event, judge = _event(options), _judge(options)
    if (options.size is None) == (options.epsilon is None):
        raise ConfigError("group needs exactly one of --size K (gives ε for K records) and --epsilon ε (gives K).")
    size = options.size
    if size is None:
        size = calibration.calibrate_group_size(event, epsilon=options.epsilon, delta=options.delta, **judge)
        reached = calibration.epsilon_of_group(event, size, options.delta, **judge) if size else 0.0
        head = f"groups of {size:,} records: the largest within ε = {general(options.epsilon)}, rounded down"
        if size == calibration.LARGEST_GROUP:
            within = f"within ε = {general(options.epsilon)}"
            head = f"groups of {size:,} records and more are {within}: no larger ones were tried"
        if not size:
            head = f"not even one record is protected at ε = {general(options.epsilon)}"
    else:
        reached = calibration.epsilon_of_group(event, check_count("--size", size, 1), options.delta, **judge)
        head = f"ε ≤ {upper(reached, 6)} at δ = {general(options.delta)} for groups of {size:,} records: an upper bound"
    lines = (
        head,
        *([] if options.size else [_row("reached", f"ε ≤ {upper(reached, 6)} at δ = {general(options.delta)}")]),
        *_common(options, event),
    )
    data = {"size": size, "epsilon": reached, "delta": options.delta, **judge, "event": event.to_json()}
    return Answer(data, lines)


def _tradeoff(options: argparse.Namespace) -> Answer:
    event, relation = _event(options), _relation(options)
    for path in options.output:
        if path.suffix.lower() not in (".png", ".csv"):
            raise invalid("--output", str(path), "a file that ends in .png or .csv")
    metrics = tradeoffs.attack_metrics(
        event,
        prior=options.prior,
        false_positive_rates=options.rates,
        delta=options.delta,
        neighboring_relation=relation,
    )
    type1 = _type1_errors(options.points)
    type2 = tradeoffs.tradeoff(event, type1, neighboring_relation=relation)
    for path in options.output:
        try:
            _write_curve(path, type1, type2, event, options)
        except OSError as error:
            raise ConfigError(f"cannot write {str(path)!r}: {error.strerror or error}.") from None
    data = {
        "advantage": metrics.advantage,
        "tpr_at_fpr": {repr(rate): tpr for rate, tpr in metrics.tpr_at_fpr.items()},
        "accuracy": metrics.accuracy,
        "prior": metrics.prior,
        "posterior": metrics.posterior,
        "posterior_of_output": metrics.posterior_of_output,
        "delta": metrics.delta,
        "neighboring_relation": relation,
        "curve": {"type1_errors": to_jsonable(type1), "type2_errors": to_jsonable(type2)},
        "files": [str(path) for path in options.output],
        "event": event.to_json(),
    }
    lines = [
        f"advantage ≤ {upper(metrics.advantage, 5)}: no attacker's true- minus false-positive rate is larger",
        *(
            _row("attack", f"true-positive rate ≤ {upper(tpr, 5)} at a false-positive rate of {general(rate)}")
            for rate, tpr in metrics.tpr_at_fpr.items()
        ),
        _row("accuracy", f"≤ {upper(metrics.accuracy, 5)} at a prior belief of {general(metrics.prior)}"),
        _row(
            "posterior",
            f"belief in membership ≤ {upper(metrics.posterior, 5)} except with probability {general(metrics.delta)}",
        ),
        _row("", f"given the output itself ≤ {upper(metrics.posterior_of_output, 5)} except with that probability"),
        *_common(options, event),
        *(_row("written", str(path)) for path in options.output),
    ]
    return Answer(data, tuple(lines))


def _type1_errors(points: int) -> Any:
    """Rates from 0 to 1: half of them evenly, half of them on a logarithmic scale from 1e-6."""
    import numpy as np

    number = check_count("--points", points, 3)
    if number > 10_000:
        raise invalid("--points", number, "at most 10000")
    half = number // 2
    return np.unique(np.concatenate([np.linspace(0, 1, number - half), np.logspace(-6, 0, half + 2)[1:-1]]))


def _write_curve(path: Path, type1: Any, type2: Any, event: acc.Event, options: argparse.Namespace) -> None:
    if path.suffix.lower() == ".csv":
        rows = [f"{float(a)!r},{float(b)!r},{float(1 - b)!r}\n" for a, b in zip(type1, type2, strict=True)]
        write_atomic(path, "type1_error,type2_error,true_positive_rate\n" + "".join(rows))
        return
    import numpy as np

    from dpml.report import privacy_plots

    name = describe(event)
    if options.picture == "tradeoff":
        privacy_plots.plot_tradeoff({name: (type1, type2)}, path)
    elif options.picture == "attack":
        privacy_plots.plot_attack({name: (type1[type1 > 0], 1 - type2[type1 > 0])}, path)
    else:
        high = acc.epsilon(event, max(options.delta, 1e-9), neighboring_relation=_relation(options))
        points = np.linspace(0, min(high, 100.0) or 1.0, 41)
        deltas = tradeoffs.profile(event, points, neighboring_relation=_relation(options))
        privacy_plots.plot_profile({name: (points, deltas)}, path)


def _compose(options: argparse.Namespace) -> Answer:
    parts = [part for text in options.FILE for part in _parts(text)]
    relations = {part.relation for part in parts if part.relation is not None}
    if options.neighboring_relation is None and len(relations) == 1:
        options.neighboring_relation = relations.pop()
    for part in parts:
        if part.relation not in (None, _relation(options)):
            raise ConfigError(
                f"{part.source} was charged under {part.relation!r}, which cannot be added up under "
                f"{_relation(options)!r}: compose ledgers of one relation, and leave --relation out or give that one."
            )
    event = acc.Composed(tuple(part.event for part in parts))
    data = _epsilon_of(event, options)
    rows = []
    for part in parts:
        try:
            alone: float | None = acc.epsilon(part.event, options.delta, **_judge(options))
        except UnsupportedEventError:
            alone = None
        rows.append({"source": part.source, "epsilon": alone, "event": part.event.to_json()})
    sources = max((len(part.source) for part in parts), default=0)
    table = [
        f"  {part.source:<{sources}}  ε ≤ {upper(row['epsilon'], 6):<10} {describe(part.event)}"
        for part, row in zip(parts, rows, strict=True)
    ]
    head, *rest = _epsilon_lines(data, event)
    rest = [line for line in rest if not line.startswith("  event")]
    listed = [f"parts, each alone at δ = {general(options.delta)}:", *table]
    return Answer({**data, "parts": rows}, (f"together: {head}", *rest, *listed))


@dataclass(frozen=True)
class _Part:
    source: str
    event: acc.Event
    relation: str | None = None


def _parts(text: str) -> list[_Part]:
    """The events of inline JSON, of a file with one event or a list of them, of a ledger, or of a run folder."""
    path = Path(text.removeprefix("@"))
    inline = text.lstrip().startswith(("{", "["))
    if not inline and path.is_dir():
        found = [file for file in (path / "ledger.jsonl", path / "release" / "ledger.jsonl") if file.is_file()]
        if not found:
            raise ConfigError(f"the folder {str(path)!r} holds no ledger.jsonl. Give a run folder or a file.")
        path = found[0]
    if not inline and path.suffix == ".jsonl":
        record = acc.read_ledger(path)
        promise = record.plan.get("guarantee")
        relation = (promise if isinstance(promise, dict) else record.plan).get("neighboring_relation")
        total = record.event
        events = total.events if isinstance(total, acc.Composed) else (total,)
        return [_Part(str(path), event, relation) for event in events]
    name, data = _load(str(path) if not inline else text)
    if isinstance(data, list):
        return [_Part(f"{name}[{place}]", acc.from_json(part)) for place, part in enumerate(data)]
    return [_Part("inline" if inline else name, acc.from_json(data))]


# ------------------------------------------------------------------------------------------------------- compare


def _compare(options: argparse.Namespace) -> Answer:
    event, relation, delta = _event(options), _relation(options), options.delta
    ends = api.interval(event, delta, neighboring_relation=relation)
    rows = [_timed(name, "accountant", _own(event, delta, name, relation)) for name in acc.ACCOUNTANTS]
    rows.append(_timed("gaussian limit", "approximation", _limit(event, delta, relation)))
    if options.peers:
        rows += ask_peers(event, delta, relation, options.timeout)
    rows = [_judged(row, ends.low) for row in rows]
    data = {
        "delta": delta,
        "neighboring_relation": relation,
        "smallest_sound": ends.accountant,
        "interval": {"low": ends.low, "high": ends.high},
        "epsilon": {row.name: row.note if row.epsilon is None else row.epsilon for row in rows},
        "rows": [{**to_jsonable(row), "ratio": _ratio(row.epsilon, ends.low)} for row in rows],
        "event": event.to_json(),
    }
    lines = [
        f"ε at δ = {general(delta)}, {relation_words(relation)} ({relation}); {describe(event)}",
        f"  {'accountant':<20}{'ε':<12}{'÷ certified low':<17}{'seconds':<9} remarks",
    ]
    for row in rows:
        value = "–" if row.epsilon is None else upper(row.epsilon, 6)
        ratio = _ratio(row.epsilon, ends.low)
        shown = "–" if ratio is None else "∞" if math.isinf(ratio) else f"{ratio:.4f}"
        seconds = "–" if row.seconds is None else f"{row.seconds:.3f}"
        lines.append(f"  {row.name:<20}{value:<12}{shown:<17}{seconds:<9} {_short(row.note)}".rstrip())
    if math.isinf(ends.high):
        lines.append("no accountant proves a finite ε")
    else:
        certified = f"the smallest ε of this event lies in {_between(ends.low, ends.high)} (certified)"
        lines.append(f"smallest sound: {ends.accountant}, ε ≤ {upper(ends.high, 6)}; {certified}")
    return Answer(data, tuple(lines))


def _short(note: str) -> str:
    """A note for the table; ``--json`` has all of it."""
    return note if len(note) <= _LONGEST_NOTE else f"{note[:_LONGEST_NOTE].rsplit(' ', 1)[0]} …"


def _timed(name: str, kind: str, value: Callable[[], float]) -> Row:
    start = time.perf_counter()
    try:
        found: float | None = value()
        note = ""
    except UnsupportedEventError as error:
        found, note = None, f"refused: {error}"
    except ConfigError as error:  # δ = 0, say
        found, note = None, f"no answer: {error}"
    return Row(name, kind, found, time.perf_counter() - start, note)


def _own(event: acc.Event, delta: float, name: str, relation: str) -> Callable[[], float]:
    return lambda: acc.epsilon(event, delta, accountant=name, neighboring_relation=relation)


def _limit(event: acc.Event, delta: float, relation: str) -> Callable[[], float]:
    from dpml.accounting.gdp import gdp_approximation

    return lambda: gdp_approximation(event, delta, neighboring_relation=relation)


def _judged(row: Row, low: float) -> Row:
    """The row with what its value is worth."""
    notes = [row.note] if row.note else []
    if row.kind == "approximation":
        notes.insert(0, "approximation, not a guarantee")
    if row.epsilon is not None and row.epsilon < low:
        notes.append("BELOW the certified low end: this ε does not hold")
    return Row(row.name, row.kind, row.epsilon, row.seconds, "; ".join(notes))


def _ratio(value: float | None, low: float) -> float | None:
    return value / low if value is not None and 0 < low < math.inf else None


# ------------------------------------------------------------------------------------------------- table of verbs


_SGD = "--noise-multiplier 1 --sample-rate 0.01 --steps 10000"
_JUDGED = "accountant, neighboring_relation"
VERBS: dict[str, Verb] = {
    "epsilon": Verb(
        "ε of an event at δ, with the certified interval around the smallest ε.",
        f"epsilon {_SGD} --delta 1e-5",
        f"epsilon, delta, {_JUDGED}, accountant_used, interval {{low, high, accountant}}, event",
        f"{_EVENT} --delta! {_JUDGE}",
        _epsilon,
    ),
    "delta": Verb(
        "δ of an event at ε.",
        f"delta {_SGD} --epsilon 2",
        f"delta, epsilon, {_JUDGED}, interval {{low, high}}, event",
        f"{_EVENT} --epsilon! {_JUDGE}",
        _delta,
    ),
    "noise": Verb(
        "The smallest noise that meets a target; with --event all noise of the event is multiplied by one factor.",
        "noise --batch-size 256 --records 60000 --epochs 20 --epsilon 3 --delta 1e-5",
        f"noise_multiplier (or noise_factor), target, {_JUDGED}, epsilon and delta (or advantage and tpr_at_fpr), "
        "steps (not with --event), event",
        f"{_MECHANISM} {_SAMPLING} --steps --epochs --epsilon --delta --advantage --tpr --fpr {_JUDGE}",
        _noise,
    ),
    "steps": Verb(
        "The most steps within (ε, δ).",
        "steps --noise-multiplier 1 --sample-rate 0.01 --epsilon 3 --delta 1e-5",
        f"steps, epochs (null without sampling), epsilon, delta, {_JUDGED}, event",
        f"{_MECHANISM} --noise-multiplier {_SAMPLING} --epsilon! --delta! --limit {_JUDGE}",
        _steps,
    ),
    "rate": Verb(
        "The largest Poisson sampling rate within (ε, δ).",
        "rate --noise-multiplier 1 --steps 2000 --records 60000 --epsilon 3 --delta 1e-5",
        f"sample_rate, batch_size (null without --records), epsilon, delta, {_JUDGED}, event",
        f"{_MECHANISM} --noise-multiplier --records --steps --epsilon! --delta! {_JUDGE}",
        _rate_verb,
    ),
    "epochs": Verb(
        "The most epochs (and whole steps) within (ε, δ).",
        "epochs --noise-multiplier 1 --batch-size 600 --records 60000 --epsilon 3 --delta 1e-5",
        f"steps, epochs, epsilon, delta, {_JUDGED}, event",
        f"{_MECHANISM} --noise-multiplier {_SAMPLING} --epsilon! --delta! --limit {_JUDGE}",
        _epochs,
    ),
    "group": Verb(
        "ε for groups of records, or the largest group within (ε, δ).",
        "group --noise-multiplier 50 --steps 10 --size 4 --delta 1e-5",
        f"size, epsilon, delta, {_JUDGED}, event",
        f"{_EVENT} --size --epsilon --delta! {_JUDGE}",
        _group,
    ),
    "compare": Verb(
        "ε by every accountant of this package and by those of opacus and dp-accounting where they are installed.",
        f"compare {_SGD} --delta 1e-5",
        "delta, neighboring_relation, smallest_sound, interval {low, high}, epsilon {name: ε or reason}, rows [{name, "
        "kind, epsilon, ratio, seconds, note}], event",
        f"{_EVENT} --delta! --relation --no-peers --timeout",
        _compare,
    ),
    "tradeoff": Verb(
        "The most that an attacker can reach: advantage, true-positive rates, beliefs; the curve as PNG or CSV.",
        f"tradeoff {_SGD} --output curve.png --output curve.csv",
        "advantage, tpr_at_fpr {fpr: tpr}, accuracy, prior, posterior, posterior_of_output, delta, "
        "neighboring_relation, curve {type1_errors, type2_errors}, files, event",
        f"{_EVENT} --output --picture --points --rates --prior --delta=1e-5 --relation",
        _tradeoff,
    ),
    "compose": Verb(
        "ε of several events, ledgers or runs on the same data together.",
        "compose first.json runs/adult/release/ledger.jsonl --delta 1e-5",
        f"epsilon, delta, {_JUDGED}, accountant_used, interval {{low, high, accountant}}, parts [{{source, epsilon, "
        "event}]",
        f"FILE --delta! {_JUDGE}",
        _compose,
    ),
    "interval": Verb(
        "A certified interval around the smallest ε of an event.",
        f"interval {_SGD} --delta 1e-5",
        "low, high, width, accountant, delta, neighboring_relation, event",
        f"{_EVENT} --delta! --relation",
        _interval,
    ),
}


if __name__ == "__main__":
    sys.exit(main())
