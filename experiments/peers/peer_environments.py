"""One virtual environment per peer, and workers as subprocesses in them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from peer_contract import ContractError, Report, read_report

HERE = Path(__file__).resolve().parent
OLDEST, NEWEST = (3, 11), (3, 14)  # versions of Python that the pinned packages have wheels for
INSTALL_SECONDS, RUN_SECONDS = 900, 7200
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
MARKER = "complete.json"


class PeerError(RuntimeError):
    """A peer cannot be installed or run; the message says why and what to do."""


@dataclass(frozen=True)
class Peer:
    """``requirements`` is ``None`` for the one that runs in the current environment."""

    name: str
    worker: str
    requirements: str | None


PEERS = (
    Peer("diffprivlib", "worker_diffprivlib.py", "requirements-diffprivlib.txt"),
    Peer("ebm", "worker_ebm.py", "requirements-ebm.txt"),
    Peer("dpml", "worker_dpml.py", None),
)


def check_python(found: Sequence[int] = sys.version_info) -> None:
    """``PeerError`` outside the versions that the pinned packages support."""
    if not OLDEST <= tuple(found[:2]) <= NEWEST:
        allowed = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
        raise PeerError(
            f"Python {found[0]}.{found[1]} cannot install the pinned peers: they need {allowed}. "
            "Run this script with such a Python."
        )


def claim(work: Path) -> Path:
    """The work folder, made (for its owner only) if missing.

    Raises:
        PeerError: it is no folder, cannot be made, or belongs to somebody else, who could have put anything in it.
    """
    try:
        work.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = work.lstat().st_uid
    except OSError as error:
        raise PeerError(f"--work {str(work)!r} cannot be made ({error.strerror}). Name another folder.") from error
    if hasattr(os, "getuid") and owner != os.getuid():
        raise PeerError(f"--work {str(work)!r} belongs to another user. Name a folder of your own.")
    return work.resolve()


def environment(peer: Peer, work: Path) -> Path:
    """The peer's Python, its packages installed; an environment that is complete and fits is used again.

    Raises:
        PeerError: the environment cannot be made or the packages cannot be installed.
    """
    assert peer.requirements is not None
    check_python()
    wanted = {"python": list(sys.version_info[:3]), "requirements": (HERE / peer.requirements).read_text("utf-8")}
    folder = work / f"venv-{peer.name}"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if python.exists() and _content(folder / MARKER) == wanted:
        return python
    if folder.exists():
        if not (folder / "pyvenv.cfg").is_file():
            raise PeerError(f"{str(folder)!r} is in the way: it is no virtual environment. Move it, or use --work.")
        shutil.rmtree(folder)
    _checked(
        [sys.executable, "-m", "venv", str(folder)],
        f"{peer.name}: no virtual environment could be made",
        "Python's venv and ensurepip are needed (Debian and Ubuntu: python3-venv).",
    )
    pip = [str(python), "-E", "-s", "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    _checked(
        [*pip, "--retries", "2", "--only-binary", ":all:", "-r", str(HERE / peer.requirements)],
        f"{peer.name}: pip could not install {peer.requirements}",
        "A package index must be within reach (or set PIP_INDEX_URL or PIP_FIND_LINKS).",
    )
    (folder / MARKER).write_text(json.dumps(wanted) + "\n", encoding="utf-8")
    return python


def run_worker(
    peer: Peer, python: Path, data: Path, runs: int, epsilon: Sequence[float], delta: float, threads: int
) -> Report:
    """What the peer's worker reports.

    Raises:
        PeerError: it fails, takes too long, or its file does not hold what it should.
    """
    out = data / f"{peer.name}.json"
    out.unlink(missing_ok=True)
    isolated = [] if peer.requirements is None else ["-E", "-s"]
    command = [str(python), *isolated, str(HERE / peer.worker), "--data", str(data), "--out", str(out)]
    command += ["--runs", str(runs), "--delta", repr(delta), "--epsilon", *(repr(e) for e in epsilon)]
    variables = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads))}
    _checked(command, f"{peer.name}: its worker failed", "", variables, RUN_SECONDS)
    try:
        report = read_report(out)
    except ContractError as error:
        raise PeerError(f"{peer.name}: {error}") from error
    missing = sorted(set(epsilon) - {row.epsilon for row in report.rows})
    if missing:
        raise PeerError(f"{peer.name}: its worker reported nothing at epsilon = {', '.join(f'{e:g}' for e in missing)}")
    return report


def _content(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _checked(
    command: Sequence[str],
    what: str,
    way_out: str,
    variables: Mapping[str, str] | None = None,
    seconds: int = INSTALL_SECONDS,
) -> None:
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise PeerError(f"{what}: it took more than {seconds} s. {way_out}".rstrip()) from error
    except OSError as error:
        raise PeerError(f"{what}: {error}. {way_out}".rstrip()) from error
    if done.returncode:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")]
        reason = " ".join((errors or lines or [f"exit status {done.returncode}"])[-2:])
        raise PeerError(f"{what}: {reason.rstrip('.')}. {way_out}".rstrip())
