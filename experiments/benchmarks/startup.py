"""How long one waits before anything happens, against importing the peers: a Markdown table.

    python experiments/benchmarks/startup.py [--quick] [--json FILE]

Every time is wall time of a fresh Python process from start to end; the commands take turns, medians are shown.
``import dpml`` is lazy, so that the fair counterpart of ``import opacus`` is the import of the trainer.  Quick takes
two of ours once and no peer.  The exit status is 1 when one of our commands fails, else 0, whatever the times.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from dp_sgd import Figure, arguments_of, finish, machine, report, seconds_text

ROOT = Path(__file__).resolve().parents[2]
HELP_TARGET = 3.0  # seconds
ACCOUNT = "-m dpml.account epsilon --noise-multiplier 1 --sample-rate 0.01 --steps 10000 --delta 1e-5"
OURS = {  # name: (arguments of Python, target in seconds)
    "import dpml": (("-c", "import dpml"), None),
    "from dpml import PrivateTrainer": (("-c", "from dpml import PrivateTrainer"), None),
    "dpml --help": (("-m", "dpml", "--help"), HELP_TARGET),
    "python -m dpml.train --help": (("-m", "dpml.train", "--help"), HELP_TARGET),
    f"python {ACCOUNT}": (tuple(ACCOUNT.split()), None),
}
QUICK = ("import dpml", "dpml --help")
BARE = "python, which does nothing"
PEERS = ("opacus", "diffprivlib")


def seconds_of(words: Sequence[str]) -> float:
    """Wall time of ``python words`` in the repository.

    Raises:
        RuntimeError: it failed; the message is its last line.
    """
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    took = time.perf_counter() - begin
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return took


def medians(commands: dict[str, tuple[str, ...]], repeats: int) -> dict[str, float]:
    """Seconds of each command, in turns; the first round is thrown away when there are several."""
    found: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(repeats + (repeats > 1)):
        for name, words in commands.items():
            found[name].append(seconds_of(words))
    return {name: statistics.median(times[repeats > 1 :]) for name, times in found.items()}


def figures(quick: bool) -> list[Figure]:
    """Ours against every peer that is installed; a line for every other."""
    installed = [name for name in PEERS if find_spec(name) is not None]
    there = [] if quick else installed
    ours = {name: OURS[name] for name in (QUICK if quick else OURS)}
    commands = {BARE: ("-c", "pass"), **{name: words for name, (words, _) in ours.items()}}
    times = medians({**commands, **{name: ("-c", f"import {name}") for name in there}}, 1 if quick else 7)
    found = [Figure(BARE, seconds_text(times[BARE]))]
    for name, (_, target) in ours.items():
        met = None if target is None else times[name] < target
        text = "–" if target is None else f"< {target:g} s"
        peers = "; ".join(f"import {peer} {seconds_text(times[peer])}" for peer in there) or "–"
        ratios = "; ".join(f"{times[name] / times[peer]:.3f} ×" for peer in there) or "–"
        found.append(Figure(name, seconds_text(times[name]), peers, ratios, text, met, times[name]))
    words = {name: "not run (--quick)" if name in installed else "not installed" for name in PEERS}
    return found + [Figure(f"import {name}", "–", words[name]) for name in PEERS if name not in there]


def main() -> int:
    """Print the table; 1 if a command of ours fails."""
    arguments = arguments_of(__doc__, ()).parse_args()
    where = machine()
    try:
        finish(report([lambda: figures(arguments.quick)]), where, arguments.quick, arguments.json)
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
