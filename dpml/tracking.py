"""One optional tracker: a finished run's release, copied to an MLflow file store (``tracking.mlflow=FOLDER``).

What is logged is read from ``release/`` alone, after it is complete: parameters are ``config.yaml``, metrics are
numbers of ``result.json``, artifacts are the released files.  All are public or charged already, so a tracker publishes
nothing new.  ``private/`` is never opened.

MLflow is the extra ``mlflow`` (``pip install 'dpml[mlflow]'``).  Newer versions keep a file store only on request, and
report their use over the network unless told not to: both are set for the time of the call.  A tracker that fails is
one line on standard error; the run and its exit status stay as they are.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from dpml.errors import RunFolderError, invalid
from dpml.rounding import upper

EXPERIMENT = "dpml"
SWITCHES = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
LONGEST_VALUE = 500
PARAMS_AT_ONCE, METRICS_AT_ONCE = 100, 1000  # MLflow's own limits of a batch


def check_store(store: str | None) -> None:
    """Refuse what is no folder of this machine.

    Raises:
        ConfigError: a URL, or an empty text.
    """
    if store is not None and (not store.strip() or "://" in store):
        raise invalid("tracking.mlflow", store, "a folder on this machine, or null", "Say tracking.mlflow=mlruns.")


def track(folder: Path, store: str | None, experiment: str = EXPERIMENT) -> bool:
    """Log a finished run, if a store is wanted; whether it was logged.  A fault is one line on stderr, never raised."""
    if store is None:
        return False
    try:
        log_run(folder, Path(store), experiment)
    except ImportError:
        _say(store, "MLflow is not installed; pip install 'dpml[mlflow]'")
    except (Exception, SystemExit) as error:
        _say(store, " ".join(f"{type(error).__name__}: {error}".split())[:300])
    else:
        return True
    return False


def log_run(folder: Path, store: Path, experiment: str = EXPERIMENT) -> str:
    """Log ``folder/release`` as one MLflow run; returns the run's id.

    Raises:
        ImportError: MLflow is missing.
        RunFolderError: the release is not complete.
        Exception: whatever MLflow raises.
    """
    release = folder / "release"
    result, config = _read(release)
    with _environment(SWITCHES):
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.tracking import MlflowClient

        now = int(time.time() * 1000)
        uri = store.resolve().as_uri()
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        run = client.create_run(_experiment(client, experiment), run_name=_name(result))
        run_id = str(run.info.run_id)
        try:
            tags = [RunTag(key, value) for key, value in tags_of(result).items()]
            client.log_batch(run_id, tags=tags)
            for part in _parts(list(params_of(config).items()), PARAMS_AT_ONCE):
                client.log_batch(run_id, params=[Param(key, value) for key, value in part])
            for numbers in _parts(metrics_of(result), METRICS_AT_ONCE):
                client.log_batch(run_id, metrics=[Metric(key, value, now, step) for key, value, step in numbers])
            for path in released_files(release):
                inside = path.relative_to(folder).parent.as_posix()
                client.log_artifact(run_id, str(path), artifact_path=inside)
        except BaseException:
            client.set_terminated(run_id, status="FAILED")
            raise
        client.set_terminated(run_id, status="FINISHED")
    return run_id


def params_of(config: Mapping[str, Any]) -> dict[str, str]:
    """The published configuration, flat: ``{"privacy.epsilon": "1.0", …}``."""
    found: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= {f"{key}.{inner}": text for inner, text in params_of(value).items()}
        else:
            found[str(key)] = str(value)[:LONGEST_VALUE]
    return found


def metrics_of(result: Mapping[str, Any]) -> list[tuple[str, float, int]]:
    """(name, value, step) of the numbers of ``result.json`` that say what was reached, and ε after each step."""
    steps = _number(result.get("steps")) or 0.0
    found = {name: _number(result.get(name)) for name in ("epsilon", "delta", "steps")}
    for group in ("metrics", "nonprivate"):
        inner = result.get(group)
        if isinstance(inner, Mapping):
            prefix = "" if group == "metrics" else f"{group}."
            found |= {f"{prefix}{name}": _number(value) for name, value in inner.items()}
    rows = [(name, value, int(steps)) for name, value in found.items() if value is not None]
    trajectory = result.get("trajectory")
    if isinstance(trajectory, Mapping):
        for step, epsilon in zip(trajectory.get("steps") or (), trajectory.get("best") or (), strict=False):
            value = _number(epsilon)
            if value is not None:
                rows.append(("epsilon_so_far", value, int(step)))
    return rows


def tags_of(result: Mapping[str, Any]) -> dict[str, str]:
    """What tells one release from another."""
    ledger = result.get("ledger")
    found = {name: result.get(name) for name in ("method", "model", "neighboring_relation", "accountant")}
    found["ledger_head"] = ledger.get("head") if isinstance(ledger, Mapping) else None
    return {f"dpml.{name}": str(value) for name, value in found.items() if value is not None}


def released_files(release: Path) -> list[Path]:
    """The regular files below ``release``, sorted; links, which may lead out of it, are left alone."""
    paths = [Path(folder) / name for folder, _, names in os.walk(release) for name in names]  # walk follows no link
    return sorted(path for path in paths if path.is_file() and not path.is_symlink())


def _read(release: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        result = json.loads((release / "result.json").read_text("utf-8"))
        config = OmegaConf.to_container(OmegaConf.load(release / "config.yaml"))
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{str(release)!r} is not a complete release ({type(error).__name__}).") from error
    if not isinstance(result, dict) or not isinstance(config, dict):
        raise RunFolderError(f"{str(release)!r} is not a complete release.")
    return result, {str(key): value for key, value in config.items()}


def _experiment(client: Any, name: str) -> str:
    """The experiment's id; another job of a sweep may be making it at this moment."""
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name))
        except Exception:
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    return str(found.experiment_id)


def _name(result: Mapping[str, Any]) -> str:
    epsilon = _number(result.get("epsilon"))
    return f"{result.get('method')} ε={'∞' if epsilon is None else upper(epsilon)}"


def _number(value: object) -> float | None:
    """A finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _parts(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


@contextmanager
def _environment(switches: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in switches}
    os.environ.update(switches)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _say(store: str, reason: str) -> None:
    print(f"tracking: not logged to {store} ({reason}). The run itself is complete.", file=sys.stderr)
