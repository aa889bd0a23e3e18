"""What an audit of a configured run does: its settings, and which go with which run.  No record is read here."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from dpml.accounting.checks import check_count, check_number, check_one_of
from dpml.errors import ConfigError, invalid

GAMES = ("one_run", "two_world")
ACCESS = ("white_box", "black_box")
CANARIES = ("gradient", "input", "mislabelled")
GROUNDS = ("records", "stand_in")
LARGEST = 2**26
"""Canaries times parameters of canaries that have an entry in every parameter."""


@dataclass(frozen=True)
class RunAuditSettings:
    """How a run is attacked; ``"auto"`` follows from the run's method and from what is declared of its data.

    Attributes:
        game: ``"one_run"`` (one training with canaries; default of ``dp_sgd``) or ``"two_world"`` (many trainings on
            two neighbouring made-up data sets; default of the other methods).
        access: ``"white_box"`` (the attacker sees every step's noisy gradient; ``dp_sgd`` only) or ``"black_box"`` (the
            final model).
        canary: ``"gradient"`` (records whose gradient is a chosen direction of norm C; white-box), ``"input"`` (rows as
            long as the public bound allows, in random directions) or ``"mislabelled"`` (rows of data that are declared
            public, with another label).
        on: ``"records"``: the canaries are trained together with the data's records.  That is a charged release of its
            own, and its model holds the canaries.  ``"stand_in"``: no record is read and nothing is charged; the
            canaries are trained alone, by the plan for the data.  ``"auto"`` takes the records where they are declared
            public, and else the stand-in, so that an audit never spends a private table's budget unasked.
        canaries: of the one-run game; each is in by a fair coin.  0: a thousand, but not more than ``dp_sgd`` has
            trained parameters (so that each has a coordinate of its own), and a hundred at least.
        runs: trainings of the two-world game, both worlds together.
        guesses: how many coins are guessed; 0 for a fifth of the canaries.
        analysis: ``"binomial"``, ``"f_dp"`` or ``"gaussian"`` in one run, ``"none"`` or ``"gaussian"`` in two worlds.
        confidence: of the lower bound, in (0, 1).
        workers: processes of the two-world game, 1 or more; 0: one for every core.
    """

    game: str = "auto"
    access: str = "auto"
    canary: str = "auto"
    on: str = "auto"
    canaries: int = 0
    runs: int = 10_000
    guesses: int = 0
    analysis: str = "auto"
    confidence: float = 0.95
    workers: int = 1


def settings_of(values: Mapping[str, Any]) -> RunAuditSettings:
    """Settings by name; ConfigError for a name that does not exist."""
    names = [field.name for field in fields(RunAuditSettings)]
    for name in values:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{name} is no setting of an audit: there are {', '.join(names)}.{hint}")
    return RunAuditSettings(**values)


def settled(
    asked: RunAuditSettings,
    *,
    method: str,
    neighboring_relation: str,
    is_public: bool,
    sampling: str = "poisson",
    shares: bool = False,
    processes: int = 1,
    n_parameters: int = 0,
) -> RunAuditSettings:
    """The settings without ``"auto"``.

    Args:
        asked: as they were given.
        The others: of the run that is attacked; all of them are public.

    Raises:
        ConfigError: a run that cannot be audited, or settings that do not fit it or each other.
    """
    if method == "nonprivate":
        raise ConfigError("method = 'nonprivate' claims no epsilon, so there is nothing to audit.")
    if processes > 1:
        raise ConfigError(f"an audit runs in one process, and there are {processes}: start it without torchrun.")
    if shares:
        raise ConfigError(
            "shares: an audit looks at the training alone, not at the stages beside it. Leave privacy.shares out."
        )
    for name, allowed in (("game", GAMES), ("access", ACCESS), ("canary", CANARIES), ("on", GROUNDS)):
        check_one_of(name, getattr(asked, name), ("auto", *allowed))
    check_number("confidence", asked.confidence, 0.0, 1.0, above=True, below=True)
    if check_count("workers", asked.workers) > 1024:
        raise invalid("workers", asked.workers, "0 (every core) to 1024")
    sgd = method == "dp_sgd"
    game = ("one_run" if sgd else "two_world") if asked.game == "auto" else asked.game
    if game == "two_world":
        return _two_worlds(asked, sgd)
    return _one_run(asked, method, neighboring_relation, is_public, sampling, n_parameters)


def _two_worlds(asked: RunAuditSettings, sgd: bool) -> RunAuditSettings:
    if sgd:
        raise invalid(
            "game", asked.game, "'one_run' with method='dp_sgd'",
            "Two worlds of the engine: python -m dpml.audit dp_sgd noise_multiplier=… steps=… sample_rate=….",
        )  # fmt: skip
    if asked.on == "records":
        raise invalid(
            "on", "records", "'stand_in' with game='two_world'", "Each of its many trainings would have to be charged."
        )
    if asked.access == "white_box":
        raise invalid("access", "white_box", "'black_box' with game='two_world'", "The final models are compared.")
    if asked.canary not in ("auto", "input"):
        raise invalid("canary", asked.canary, "'input' with game='two_world'")
    for name in ("canaries", "guesses"):
        if check_count(name, getattr(asked, name)):
            raise invalid(name, getattr(asked, name), "left out with game='two_world'", "Its runs are set by runs.")
    analysis = "none" if asked.analysis == "auto" else asked.analysis
    check_one_of("analysis", analysis, ("none", "gaussian"))
    if not 100 <= check_count("runs", asked.runs) <= 10**7:
        raise invalid("runs", asked.runs, "from 100 to 10,000,000")
    return replace(asked, game="two_world", access="black_box", canary="input", on="stand_in", analysis=analysis)


def _one_run(
    asked: RunAuditSettings, method: str, relation: str, is_public: bool, sampling: str, n_parameters: int
) -> RunAuditSettings:
    if relation != "add_remove":
        raise invalid(
            "neighboring_relation", relation, "'add_remove' with game='one_run'",
            "Its theorems speak of a canary that is in or out. The convex methods can be audited by game='two_world'.",
        )  # fmt: skip
    if sampling != "poisson":
        raise invalid("sampling", sampling, "'poisson'", "An audit changes how many records there are.")
    sgd = method == "dp_sgd"
    access = ("white_box" if sgd else "black_box") if asked.access == "auto" else asked.access
    if access == "white_box" and not sgd:
        raise invalid("access", access, f"'black_box' with method={method!r}", "It releases its last model only.")
    canary = asked.canary
    if canary == "auto":
        canary = "gradient" if access == "white_box" else "input"
    if (canary == "gradient") != (access == "white_box"):
        fitting = "'gradient'" if access == "white_box" else "'input' or 'mislabelled'"
        raise invalid("canary", canary, f"{fitting} with access={access!r}")
    on = ("records" if is_public else "stand_in") if asked.on == "auto" else asked.on
    if canary == "mislabelled" and not (is_public and on == "records"):
        raise invalid(
            "canary", canary, "'input' or 'gradient' unless the data are declared public and on='records'",
            "Canaries are published, so they must be no one's records.",
        )  # fmt: skip
    if check_count("canaries", asked.canaries) == 0:
        asked = replace(asked, canaries=max(100, min(1000, n_parameters)) if canary == "gradient" else 1000)
    check_count("canaries", asked.canaries, 2)
    if canary == "gradient" and asked.canaries > n_parameters and asked.canaries * n_parameters > LARGEST:
        raise invalid("canaries", asked.canaries, f"at most {max(n_parameters, LARGEST // n_parameters):,} here")
    guesses = asked.guesses or max(2, asked.canaries // 5)
    if not 2 <= check_count("guesses", guesses) <= asked.canaries:
        raise invalid("guesses", asked.guesses, f"0, or 2 to the {asked.canaries} canaries")
    analysis = "binomial" if asked.analysis == "auto" else asked.analysis
    check_one_of("analysis", analysis, ("binomial", "f_dp", "gaussian"))
    return replace(asked, game="one_run", access=access, canary=canary, on=on, analysis=analysis, guesses=guesses)
