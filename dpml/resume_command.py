"""``python -m dpml.train resume=RUN_FOLDER``: go on with one killed run, configured as it was when it started.

Hydra wrote the composed configuration to the run's ``private/hydra/`` before any record was read; that is what counts,
whatever the YAML files say today.  :meth:`PrivateTrainer.resume` compares it with what the run itself kept, and the
data with their HMAC; nothing here charges or draws anything.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dpml import config as configuration
from dpml import processes
from dpml.accounting import verify
from dpml.errors import ConfigError, RunFolderError
from dpml.jobs import finish_release, kept_overrides, read_status, run_job
from dpml.release import RunFolder
from dpml.results import PATH_KEYS
from dpml.resuming import HYDRA_FOLDER, Saved, charged_on_disk, sole_use
from dpml.trainer import PrivateTrainer

DATA_PATHS = tuple(key for key in PATH_KEYS if key.startswith("data."))
COMPUTING = ("device", "method.micro_batch_size")
MAY_CHANGE = (*COMPUTING, "verbose", "report", *DATA_PATHS, "tracking.mlflow")
"""Overrides that may stand beside ``resume=``: where and in which pieces a step is computed, what is shown, and where
the very same data lie now.  None of them changes a release."""


@dataclass(frozen=True)
class Started:
    """What a run was started with, as Hydra wrote it down.

    Attributes:
        folder: the run.
        config: composed, typed again, its paths as seen from here.
        overrides: of the command line, without Hydra's own.
        cwd: the folder in which the run was started.
    """

    folder: RunFolder
    config: DictConfig
    overrides: tuple[str, ...]
    cwd: Path

    @property
    def again(self) -> str:
        """The command that starts such a run anew, for the custodian."""
        command = shlex.join([*processes.launcher(), "-m", "dpml.train", *self.overrides])
        return command if self.cwd == Path.cwd() else f"cd {shlex.quote(str(self.cwd))} && {command}"


# -- the command line -------------------------------------------------------------------------------------------------
def is_asked(arguments: Sequence[str]) -> bool:
    """Whether ``resume=…`` is among the words."""
    return any(text.startswith("resume=") for text in arguments)


def resume_run(arguments: Sequence[str]) -> int:
    """Carry out the command; returns its exit status.

    Raises:
        ConfigError: other words beside ``resume=FOLDER`` than :data:`MAY_CHANGE`.
        RunFolderError: no run that can be gone on with in this folder, or another process has it.
    """
    path, given = _words(arguments)
    folder = _run_folder(path)
    _refuse_in_use(folder)
    if (folder.release / "result.json").is_file():
        return _finish(folder)
    started = _started(folder)
    try:
        Saved.read(folder)
    except RunFolderError as error:
        raise RunFolderError(f"{error} {_anew(started)}") from error
    _set(started.config, given)
    _say_where(started)
    if run_job(started.config, folder.path, started.overrides, resume=True, changes=_changes(started.config, given)):
        return 0
    print(_anew(started), file=sys.stderr)
    return 1


def follow_run(arguments: Sequence[str]) -> None:
    """The part of a process other than the first under ``torchrun``: the same data, and nothing is written.

    Raises:
        DpmlError: as :func:`resume_run`, or what process 0 says.
    """
    path, given = _words(arguments)
    started = _started(_run_folder(path))
    _set(started.config, given)
    PrivateTrainer.resume(started.folder.path, configuration.build_data(started.config))


def _words(arguments: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The folder and the overrides beside it."""
    folders, given = [], {}
    for text in arguments:
        key, equals, value = text.partition("=")
        if text in ("-m", "--multirun") or key == "resume_sweep":
            raise ConfigError(
                f"resume= cannot stand beside {text}: it goes on with one run. A sweep is finished with "
                "python -m dpml.train resume_sweep=FOLDER alone."
            )
        if key == "resume":
            folders.append(value)
        elif equals and key.lstrip("+") in MAY_CHANGE:
            given[key.lstrip("+")] = value
        else:
            raise ConfigError(
                f"{text} cannot stand beside resume=: a run goes on with the configuration that it was started with. "
                f"Beside resume=FOLDER there may be {', '.join(MAY_CHANGE)}. To train with other values start a new "
                "run (what this one charged stays spent)."
            )
    if len(folders) != 1 or not folders[0]:
        raise ConfigError(f"{' '.join(f'resume={f}' for f in folders)}: give one run folder, resume=FOLDER.")
    return folders[0], given


def _set(config: DictConfig, given: Mapping[str, str]) -> None:
    for key, value in given.items():
        if "${" in value:
            raise ConfigError(f"{key} = {value!r} is not allowed beside resume=: it must be a value, not a reference.")
        parsed = OmegaConf.from_dotlist([f"value={value}"]).value if key == "method.micro_batch_size" else value
        try:
            OmegaConf.update(config, key, parsed, force_add=True)
        except OmegaConfBaseException as error:
            raise ConfigError(f"{key} = {value!r} is not allowed: {str(error).splitlines()[0]}.") from error


def _changes(config: DictConfig, given: Mapping[str, str]) -> dict[str, Any]:
    """What ``PrivateTrainer.resume`` shall compute otherwise than before."""
    return {key.split(".")[-1]: OmegaConf.select(config, key) for key in COMPUTING if key in given}


# -- the folder -------------------------------------------------------------------------------------------------------
def _run_folder(path: str) -> RunFolder:
    """The run, which is one of its own and was not copied without its ``private/``."""
    name, folder = f"resume = {path!r}", RunFolder(path)
    if folder.path.name == "release" and not folder.release.exists():
        folder = RunFolder(folder.path.parent)
    if not folder.path.exists():
        raise RunFolderError(f"{name} does not exist. Give the run's folder: hydra.run.dir, or outputs/<date>/<time>.")
    for root in (folder.path, folder.path.parent):
        if (root / "sweep.json").is_file():
            what = "holds a sweep" if root == folder.path else f"is a job of the sweep in {str(root)!r}"
            command = shlex.join(["python", "-m", "dpml.train", f"resume_sweep={root}"])
            raise RunFolderError(f"{name} {what}, not a run of its own. Finish the sweep with: {command}")
    if not folder.release.is_dir():
        if _kept(folder).is_file():
            raise RunFolderError(f"{name} was killed before it charged anything. {_anew(_started(folder))}")
        raise RunFolderError(f"{name} is not a run folder: it has no release/ in it. Give the run's folder.")
    if not folder.private.is_dir():
        raise RunFolderError(
            f"{name} has no private/ in it: give the folder that the run wrote, not a copy of release/."
        )
    return folder


def _refuse_in_use(folder: RunFolder) -> None:
    """Before anything is written to the console or the folder; ``PrivateTrainer.resume`` locks it for good.

    The ledger first: a living run holds that one from its first line on, so the other is never taken from it.
    """
    try:
        handle = os.open(folder.release / "ledger.jsonl", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunFolderError(
            f"cannot open the ledger of {str(folder.path)!r} ({error.strerror}); nothing was charged."
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        raise RunFolderError(
            f"{str(folder.path)!r} is in use by another process: a run goes on in one process only. Wait for it, or "
            "stop it first."
        ) from error
    finally:
        os.close(handle)
    if (folder.private / "resume.json").is_file():
        with sole_use(folder):
            pass


def _finish(folder: RunFolder) -> int:
    """A complete release gets what it lacks of its report; one that lacks nothing is refused."""
    path = str(folder.path)
    check = shlex.join(["python", "-m", "dpml.verify", path])
    if not verify(folder.path).ok:
        raise RunFolderError(f"{path!r} is finished, but does not verify; nothing was changed. See: {check}")
    report = _kept(folder).is_file() and bool(_started(folder).config.report)
    if read_status(folder.path) == "running" or (report and not (folder.release / "report.html").is_file()):
        finish_release(folder.path, report=report)
        print(f"the release in {path} was complete already; what it lacked beside is written now")
        return 0
    anew = f" {_anew(_started(folder))}" if _kept(folder).is_file() else ""
    raise RunFolderError(f"{path!r} is finished; there is nothing to resume. Check it with: {check}.{anew}")


def _kept(folder: RunFolder) -> Path:
    return folder.private / HYDRA_FOLDER / "config.yaml"


def _started(folder: RunFolder) -> Started:
    """Read what Hydra wrote at the run's start.

    Raises:
        RunFolderError: the run was not started by the command line, or its files are damaged.
    """
    if not _kept(folder).is_file():
        raise RunFolderError(
            f"{str(folder.path)!r} was not started by python -m dpml.train ({HYDRA_FOLDER}/config.yaml is not in its "
            f"private/). Go on with it in Python: PrivateTrainer.resume({str(folder.path)!r}, data)"
        )
    try:
        hydra = OmegaConf.load(_kept(folder).with_name("hydra.yaml")).hydra
        cwd, overrides = Path(str(hydra.runtime.cwd)), [str(text) for text in hydra.overrides.task]
        config = _typed(OmegaConf.load(_kept(folder)))
        for key in PATH_KEYS:
            value = OmegaConf.select(config, key)
            if value is not None and cwd != Path.cwd():
                OmegaConf.update(config, key, str(cwd / str(value)))
    except Exception as error:  # whatever a damaged YAML file makes of it
        raise RunFolderError(
            f"{str(_kept(folder).parent)!r} is damaged ({type(error).__name__}); nothing was charged. Put the run's "
            "own files back, or start a new run."
        ) from error
    return Started(folder, config, tuple(kept_overrides(overrides)), cwd)


def _typed(loaded: Any) -> DictConfig:
    """The saved configuration with the schemas' types, and their defaults for fields that came later."""
    config = OmegaConf.structured(configuration.Config)
    for group, members in configuration.GROUPS.items():
        config[group] = OmegaConf.structured(members[str(loaded.get(group, {}).get("name", "default"))])
    merged = OmegaConf.merge(config, loaded)
    assert isinstance(merged, DictConfig)
    return merged


# -- what is said -----------------------------------------------------------------------------------------------------
def _say_where(started: Started) -> None:
    found = charged_on_disk(started.folder.path)
    steps = "" if found is None else f": {found.charged} of {found.steps} steps are charged and never run again"
    print(f"going on with {started.folder.path}{steps}")
    for key in DATA_PATHS:
        value = OmegaConf.select(started.config, key)
        if value is not None:
            print(f"  {key} = {value}")


def _anew(started: Started) -> str:
    return f"A new run of this configuration: {started.again}"
