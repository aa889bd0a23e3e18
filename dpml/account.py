"""``python -m dpml.account VERB …``: accounting without training.

epsilon   ε of an event at δ            delta     δ of an event at ε
noise     smallest noise multiplier     steps     largest number of steps
compare   ε by every accountant         compose   ε of several events together

An event is given by options (--noise-multiplier 1.1 --sample-rate 0.01 --steps 1000) or as JSON (--event '{…}', or
--event @FILE; ``compose`` takes several).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dpml import accounting as acc
from dpml.errors import ConfigError, DpmlError, UnsupportedEventError
from dpml.results import dumps


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and print its answer; returns the exit status (2 for a refused argument)."""
    options = _parser().parse_args(arguments)
    try:
        answer = _VERBS[options.verb](options)
    except DpmlError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(dumps(answer))
    else:
        _print(answer)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dpml.account", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in _VERBS:
        part = verbs.add_parser(verb)
        if verb == "compose":
            part.add_argument("events", nargs="+", help="events as JSON or @FILE")
        else:
            part.add_argument("--event", help="the event as JSON or @FILE")
            part.add_argument("--sample-rate", type=float, help="Poisson sampling probability")
        if verb not in ("noise", "compose"):
            part.add_argument("--noise-multiplier", type=float, help="noise std / contribution of one record")
        if verb not in ("steps", "compose"):
            part.add_argument("--steps", type=int, help="number of releases (default 1)")
        if verb in ("delta", "noise", "steps"):
            part.add_argument("--epsilon", type=float, required=True)
        if verb != "delta":
            part.add_argument("--delta", type=float, required=True)
        if verb != "compare":
            part.add_argument("--accountant", default="best", choices=acc.ACCOUNTANTS)
        part.add_argument("--neighboring-relation", default=acc.ADD_REMOVE, choices=acc.RELATIONS)
        part.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _read_event(text: str) -> acc.Event:
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot read the event file {text[1:]!r}: {error.strerror}.") from error
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"the event is not JSON: {error}.") from error
    return acc.from_json(data)


def _gaussian(options: argparse.Namespace, noise_multiplier: float) -> acc.Event:
    event: acc.Event = acc.Gaussian(noise_multiplier)
    return event if options.sample_rate is None else acc.PoissonSampled(options.sample_rate, event)


def _event(options: argparse.Namespace) -> acc.Event:
    noise = getattr(options, "noise_multiplier", None)
    steps = getattr(options, "steps", None)
    if options.event is not None:
        if noise is not None or options.sample_rate is not None:
            raise ConfigError("--event excludes --noise-multiplier and --sample-rate.")
        event = _read_event(options.event)
    elif noise is None:
        raise ConfigError("give --noise-multiplier (with --sample-rate, --steps) or --event.")
    else:
        event = _gaussian(options, noise)
    return event if steps is None else acc.SelfComposed(event, steps)


def _shared(options: argparse.Namespace) -> dict[str, Any]:
    return {"accountant": options.accountant, "neighboring_relation": options.neighboring_relation}


def _epsilon(options: argparse.Namespace) -> dict[str, Any]:
    return _epsilon_of(_event(options), options)


def _epsilon_of(event: acc.Event, options: argparse.Namespace) -> dict[str, Any]:
    used = options.accountant
    if used == "best":
        value, used = acc.best(event, options.delta, neighboring_relation=options.neighboring_relation)
    else:
        value = acc.epsilon(event, options.delta, **_shared(options))
    return {"epsilon": value, "delta": options.delta, **_shared(options), "accountant_used": used}


def _delta(options: argparse.Namespace) -> dict[str, Any]:
    value = acc.delta(_event(options), options.epsilon, **_shared(options))
    return {"delta": value, "epsilon": options.epsilon, **_shared(options)}


def _noise(options: argparse.Namespace) -> dict[str, Any]:
    if options.event is not None:
        raise ConfigError("noise calibrates Gaussian steps: give --sample-rate and --steps, not --event.")
    steps = 1 if options.steps is None else options.steps
    value = acc.calibrate(
        lambda noise: acc.SelfComposed(_gaussian(options, noise), steps),
        epsilon=options.epsilon,
        delta=options.delta,
        **_shared(options),
    )
    event = acc.SelfComposed(_gaussian(options, value), steps)
    reached = acc.epsilon(event, options.delta, **_shared(options))
    return {"noise_multiplier": value, "epsilon": reached, "delta": options.delta, "steps": steps, **_shared(options)}


def _steps(options: argparse.Namespace) -> dict[str, Any]:
    step = _event(options)
    value = acc.calibrate_steps(
        lambda count: acc.SelfComposed(step, count), epsilon=options.epsilon, delta=options.delta, **_shared(options)
    )
    reached = acc.epsilon(acc.SelfComposed(step, value), options.delta, **_shared(options))
    return {"steps": value, "epsilon": reached, "delta": options.delta, **_shared(options)}


def _compare(options: argparse.Namespace) -> dict[str, Any]:
    event = _event(options)
    values: dict[str, Any] = {}
    for name in acc.ACCOUNTANTS:
        try:
            values[name] = acc.epsilon(
                event, options.delta, accountant=name, neighboring_relation=options.neighboring_relation
            )
        except UnsupportedEventError as error:
            values[name] = f"refused: {error}"
    return {"delta": options.delta, "neighboring_relation": options.neighboring_relation, "epsilon": values}


def _compose(options: argparse.Namespace) -> dict[str, Any]:
    return _epsilon_of(acc.Composed(tuple(_read_event(text) for text in options.events)), options)


def _print(answer: dict[str, Any]) -> None:
    for key, value in answer.items():
        if isinstance(value, dict):
            for name, inner in value.items():
                print(f"{key} ({name}): {inner:.9g}" if isinstance(inner, float) else f"{key} ({name}): {inner}")
        else:
            print(f"{key}: {value:.9g}" if isinstance(value, float) else f"{key}: {value}")


_VERBS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "epsilon": _epsilon,
    "delta": _delta,
    "noise": _noise,
    "steps": _steps,
    "compare": _compare,
    "compose": _compose,
}


if __name__ == "__main__":
    sys.exit(main())
