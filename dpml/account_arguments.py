"""The options of ``python -m dpml.account`` and the event that they describe.

Numbers come in exactly (10 epochs at rate 0.01 are 1000 steps), and none of them may vanish: what is not 0 but would be
0 as a float, a sampling rate of 1e-400 say, is refused, because at rate 0 nothing is released.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Any

from dpml import accounting as acc
from dpml.accounting.events import check_count, check_number
from dpml.accounting.ledger import strict_json
from dpml.errors import ConfigError, invalid

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
SCALED = ("noise_multiplier", "noise_std", "noise_scale")  # by which the noise of an event is multiplied


_LONGEST_NUMBER = 1000  # characters
_LARGEST_EXPONENT = 400


def _number(text: str) -> float:
    """A number, or a fraction such as 256/60000."""
    if "/" not in text and not _is_finite_number(text):
        with contextlib.suppress(ValueError):
            return float(text)  # inf and nan: whoever takes the number refuses them by name
    return float(_exact(text, "a number (1e-5, 0.01 and 256/60000 are)"))


def _fraction(text: str) -> Fraction:
    """The exact value of a finite number or fraction, so that 10 epochs at rate 0.01 are 1000 steps."""
    return _exact(text, "a finite number (0.01 and 256/60000 are)")


def _whole(text: str) -> int:
    """A whole number; 1e4 is one too."""
    expected = "a whole number (10000 and 1e4 are)"
    value = _exact(text, expected)
    if value.denominator != 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not {expected}")
    return int(value)


def _exact(text: str, expected: str) -> Fraction:
    """The number that ``text`` says; refused before a huge integer is built, and where its float is 0 though it is not.

    Raises:
        ArgumentTypeError: no number, one of more than 1000 characters, or one whose float would be infinite or 0.
    """
    if len(text) > _LONGEST_NUMBER:
        raise argparse.ArgumentTypeError(
            f"{text[:20] + '…'!r} is not {expected}: it has {len(text)} characters, allowed are {_LONGEST_NUMBER}"
        )
    name = repr(text if len(text) <= 60 else f"{text[:60]}…")
    try:
        parts = [Decimal(part) for part in text.split("/")]
        finite = all(part.is_finite() for part in parts)
    except InvalidOperation:
        finite = False
    if not finite or len(parts) > 2 or (len(parts) == 2 and parts[1] == 0):
        raise argparse.ArgumentTypeError(f"{name} is not {expected}")
    if parts[0] == 0:
        return Fraction(0)
    size = parts[0].adjusted() - (parts[1].adjusted() if len(parts) == 2 else 0)
    if abs(size) < _LARGEST_EXPONENT and all(abs(part.adjusted()) < 2 * _LARGEST_EXPONENT for part in parts):
        value = Fraction(parts[0]) / (Fraction(parts[1]) if len(parts) == 2 else 1)
        try:
            if float(value) != 0:
                return value
        except OverflowError:
            size = _LARGEST_EXPONENT
    if size > 0:
        raise argparse.ArgumentTypeError(f"{name} is too large: numbers up to 1.7e308 are allowed")
    raise argparse.ArgumentTypeError(
        f"{name} is not 0 but would be as a number of double precision: 0 is allowed, and sizes from 5e-324 on"
    )


def _is_finite_number(text: str) -> bool:
    try:
        return Decimal(text).is_finite()
    except InvalidOperation:
        return False


def parse_json(text: str) -> Any:
    """:func:`strict_json` that also refuses a number that would become 0 though it is not: ConfigError."""
    value = strict_json(text)
    json.loads(text, parse_float=_not_vanishing, parse_int=str, parse_constant=str)
    return value


def _not_vanishing(digits: str) -> str:
    if float(digits) == 0 and any(digit in "123456789" for digit in digits.lower().partition("e")[0]):
        raise invalid(
            "a number of the JSON",
            digits if len(digits) <= 60 else f"{digits[:60]}…",
            "0 or of a size of at least 5e-324",
            "It is not 0, but would be as a number of double precision.",
        )
    return digits


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
MECHANISM = "--event --mechanism --parameter"
SAMPLING = "--sample-rate --batch-size --records"
EVENT = f"{MECHANISM} --noise-multiplier {SAMPLING} --steps --epochs"
JUDGE = "--accountant --relation"


def add_options(part: argparse.ArgumentParser, options: str) -> None:
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


def relation_of(options: argparse.Namespace) -> str:
    return options.neighboring_relation or acc.ADD_REMOVE


def judge_of(options: argparse.Namespace) -> dict[str, Any]:
    return {"accountant": options.accountant, "neighboring_relation": relation_of(options)}


def event_of(options: argparse.Namespace) -> acc.Event:
    """The event of the options, its steps included."""
    return times(step_of(options, getattr(options, "noise_multiplier", None)), steps_of(options))


def times(event: acc.Event, steps: int | None) -> acc.Event:
    return event if steps is None else acc.SelfComposed(event, steps)


def step_of(options: argparse.Namespace, noise: float | None, rate: float | None = None) -> acc.Event:
    """One release; ``noise`` and ``rate`` are the options' or what a calibration tries."""
    if options.event is not None:
        refuse_with_event(options)
        return read_event(options.event)
    event = _mechanism(options, noise)
    if rate is None:
        exact_rate = rate_of(options)
        rate = None if exact_rate is None else check_number("sampling rate", exact_rate, 0.0, 1.0)
    return event if rate is None else acc.PoissonSampled(rate, event)


def refuse_with_event(options: argparse.Namespace) -> None:
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
        return parse_json(text)
    except ConfigError:
        raise
    except (ValueError, RecursionError):
        return text.strip()


def rate_of(options: argparse.Namespace) -> Fraction | None:
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
        if float(batch / records) == 0 < batch:
            allowed = f"0, or at least 5e-324 times --records = {records}"
            raise invalid("--batch-size", float(batch), allowed, "The sampling rate would be 0, though it is not.")
        return batch / records
    if rate is not None:
        check_number("--sample-rate", float(rate), 0.0, 1.0)
    return rate


def steps_of(options: argparse.Namespace) -> int | None:
    steps, epochs = getattr(options, "steps", None), getattr(options, "epochs", None)
    if epochs is None:
        return None if steps is None else check_count("--steps", steps)
    if steps is not None:
        raise ConfigError("--epochs excludes --steps: give one of both.")
    rate = rate_of(options)
    if rate is None or rate == 0:
        raise ConfigError("--epochs needs --sample-rate Q (or --batch-size and --records), Q > 0: steps = epochs/Q.")
    if epochs < 0:
        raise invalid("--epochs", float(epochs), "a number >= 0")
    return check_count("steps = epochs / sample rate", math.ceil(epochs / rate))


def load(text: str) -> tuple[str, Any]:
    """(name, parsed JSON) of inline JSON, FILE or @FILE."""
    name, body = "the event", text
    if not text.lstrip().startswith(("{", "[")):
        name = text.removeprefix("@")
        body = _text_of(Path(name))
    try:
        return name, parse_json(body)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
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


def read_event(text: str) -> acc.Event:
    name, data = load(text)
    if isinstance(data, list):
        raise ConfigError(
            f"{name} is a list: --event takes one event. Use the verb compose, or an event of type 'composed'."
        )
    return acc.from_json(data)
