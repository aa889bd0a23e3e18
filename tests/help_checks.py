"""What the command lines' ``--help`` prints, read in a fresh process, and the examples in it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

from dpml import account, predict, sample_size, schema, verify
from dpml.report import __main__ as report

SUBVERBS = {"account": tuple(account.VERBS), "schema": ("draft", "check")}
MODULES = {"predict": predict, "verify": verify, "account": account, "sample_size": sample_size, "schema": schema}
MODULES["report"] = report

SHOW = """
import contextlib, io, json, runpy, sys
shown = {}
for words in json.loads(sys.argv[1]):
    sys.argv = list(words)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            runpy.run_module(words[0], run_name="__main__", alter_sys=False)
            status = 0
        except SystemExit as stop:
            status = stop.code
    shown[" ".join(words)] = [status, out.getvalue()]
print(json.dumps([shown, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def shown_by(lines: list[list[str]], folder: Path) -> tuple[dict[str, tuple[int, str]], set[str]]:
    """What each command line prints, with its status, and what one fresh process has loaded after all of them."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::RuntimeWarning:runpy", "-c", SHOW, json.dumps(lines)],
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    shown, loaded = json.loads(done.stdout)
    return shown, set(loaded)


def examples(text: str) -> list[list[str]]:
    """The commands of a help text, without the comments that stand two or more spaces behind them."""
    found = []
    for line in text.splitlines():
        match = re.match(r"\s+(?:python -m dpml\.|dpml )(\w+) (.*)$", line)
        if match:
            words = re.split(r"\s{2,}", match.group(2).strip())[0]
            found.append([match.group(1), *shlex.split(words)])
    return found
