"""The commands that repeat a run, check it and build its report again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from dpml.report.records import RunRecord
from dpml.report.values import sequence
from dpml.results import PATH_KEYS, without_folders

MOST_CHARACTERS = 4000
TRAIN = ["python", "-m", "dpml.train"]


def reproduce(record: RunRecord) -> str | None:
    """The command or the Python lines that repeat a run (with fresh noise); ``None`` where the records say neither.

    Paths of the custodian are cut down to file names, as they are in ``config.yaml``.
    """
    words = _words(record.result)
    if words is not None:
        return shlex.join(without_folders(word) for word in words)[:MOST_CHARACTERS]
    return _python(record.config)


def names_files(record: RunRecord) -> bool:
    """Whether the command names files of the custodian, whose folders are not in the records."""
    return any(
        word.partition("=")[0].lstrip("+") in PATH_KEYS and word.partition("=")[2] not in ("", "null")
        for word in _words(record.result) or ()
    )


def _words(result: Mapping[str, Any]) -> list[str] | None:
    command, overrides = result.get("command"), sequence(result.get("overrides"))
    if isinstance(command, str) and command.strip():
        try:
            return shlex.split(command)
        except ValueError:  # an open quote: nobody's shell would take it
            return None
    if overrides and all(isinstance(word, str) for word in overrides):
        return [*TRAIN, *overrides]
    return None


def _python(config: str | None) -> str | None:
    """The trainer's arguments that a run from Python left as JSON in ``config.yaml``."""
    try:
        found = json.loads(config or "")
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or "own_loss" not in found or not isinstance(found.get("model"), str):
        return None
    given = {key: value for key, value in found.items() if key != "own_loss" and value not in (None, {}, [])}
    if not all(str(key).isidentifier() for key in given):
        return None
    lines = [f"    {key}={value!r}," for key, value in given.items()]
    if found["own_loss"] is True:
        lines.append("    loss=...,  # the loss function of the run")
    text = "\n".join(["from dpml import PrivateTrainer", "", "trainer = PrivateTrainer(", *lines, ")"])
    return text + "\ntrainer.fit(data)  # the same private data" if len(text) < MOST_CHARACTERS else None
