"""``python -m dpml.audit +experiment=logreg …``: attack the run that ``dpml.train`` makes of the same words.

Words beginning with ``audit.`` are the audit's own; Hydra composes the others exactly as for ``dpml.train``.
"""

from __future__ import annotations

import shlex
import signal
import sys
import warnings
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from dpml import config as configuration
from dpml.audit.run_settings import RunAuditSettings, settings_of
from dpml.composition_faults import as_config_errors
from dpml.console import StepBar, audit_table, plan_table
from dpml.errors import ConfigError, DpmlError
from dpml.jobs import finish_release, kept_overrides
from dpml.results import without_folders

PREFIX = "audit."
DEFAULTS = {"workers": 0}
"""Of the command only: every core.  (A call in Python starts processes only where it is asked to.)"""
HELP = """Attack the run that dpml.train makes of the same words; set what was found beside the epsilon it claims.

  python -m dpml.audit +experiment=logreg                          DP-SGD on Adult with gradient canaries, white-box
  python -m dpml.audit +experiment=logreg audit.access=black_box   canary rows, the final model
  python -m dpml.audit +experiment=logreg method=objective         two made-up data sets, trained again and again
  python -m dpml.audit +experiment=logreg audit.on=stand_in        canaries alone: no record is read

All groups and values of dpml.train, and for the audit (their meaning: docs/audit.md):
"""


def main(arguments: Sequence[str]) -> int:
    """Exit status 0: the claim stands, 1: it is contradicted at the audit's confidence, 2: an error."""
    if any(text in ("-h", "--help") for text in arguments):
        print(
            HELP + "\n".join(f"  {PREFIX}{f.name}={DEFAULTS.get(f.name, f.default)}" for f in fields(RunAuditSettings))
        )
        return 0
    try:
        found = audited(arguments)
    except (DpmlError, OSError) as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "dpml: stopped. What was charged stays spent. Trainings of two worlds that were finished are kept: the "
            "same command with this one's folder, hydra.run.dir=FOLDER, goes on.",
            file=sys.stderr,
        )
        return 128 + signal.SIGINT
    return 1 if found.contradicted else 0


def audited(arguments: Sequence[str]) -> Any:
    """Compose, attack, write and print; gives the :class:`~dpml.audit.runs.RunAudit`."""
    own = [text for text in arguments if text.lstrip("+").startswith(PREFIX)]
    words = [text for text in arguments if text not in own]
    for text in words:
        if text.startswith("-") or "=" not in text:
            raise ConfigError(
                f"{text!r} is no word of an audit: give group=choice, key=value or {PREFIX}NAME=value. An audit is of "
                "one run; there are no sweeps of them."
            )
    settings = parse(own)
    config, folder = composed(words)
    trainer = configuration.build_trainer(config, run_dir=folder)
    data = configuration.build_data(config)
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    console.print(plan_table(trainer.plan(data)))
    with StepBar(config.verbose) as bar:
        found = trainer.audit(
            data, progress=bar, config=configuration.public_text(config), command=_command(arguments), **settings
        )
    if found.charged:
        finish_release(folder, report=bool(config.report))
    console.print(audit_table(found.rows()))
    return found


def parse(words: Sequence[str]) -> dict[str, Any]:
    """Settings by name from ``audit.NAME=value``.

    Raises:
        ConfigError: an unknown name, one that is given twice, a number that is none.
    """
    kinds = {field.name: str(field.type) for field in fields(RunAuditSettings)}
    found: dict[str, Any] = {}
    for word in words:
        name, sign, text = word.lstrip("+").removeprefix(PREFIX).partition("=")
        if not sign or name in found:
            raise ConfigError(f"{word!r} is " + ("given twice." if sign else f"not {PREFIX}NAME=value."))
        settings_of({name: text})  # is there such a name?
        kind = kinds[name]
        try:
            found[name] = text if kind == "str" else int(text) if kind == "int" else float(text)
        except ValueError:
            raise ConfigError(f"{word!r}: that is not a {'whole ' if kind == 'int' else ''}number.") from None
    return DEFAULTS | found


def composed(words: Sequence[str]) -> tuple[DictConfig, Path]:
    """The checked configuration without Hydra's part, and the folder of the run, both as ``dpml.train`` has them."""
    from dpml.train import _check_names

    configuration.register()
    _check_names(words)
    with as_config_errors(), hydra.initialize_config_dir(str(configuration.config_folder()), version_base="1.3"):
        with warnings.catch_warnings():  # Hydra's own launcher and its schema
            warnings.filterwarnings("ignore", message="(?s).*validated against ConfigStore schema")
            whole = hydra.compose("config", overrides=list(words), return_hydra_config=True)
        configuration.check_hydra_keys(whole.hydra)
        folder = Path(str(whole.hydra.run.dir))
        job = whole.copy()
        OmegaConf.set_struct(job, False)
        job.pop("hydra", None)
        configuration.check(job)
    return job, folder


def _command(arguments: Sequence[str]) -> str:
    return shlex.join(["python", "-m", "dpml.audit", *map(without_folders, kept_overrides(arguments))])
