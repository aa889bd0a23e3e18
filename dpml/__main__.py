"""The console script ``dpml VERB …``, the same as ``python -m dpml.VERB …``."""

from __future__ import annotations

import runpy
import sys

VERBS = {
    "train": "train a model under one (ε, δ), or sweep over budgets",
    "predict": "score a new table with a released model",
    "verify": "recompute a run's ε from its ledger",
    "report": "rebuild the HTML report of a run or sweep",
    "account": "privacy accounting without training",
    "audit": "attack DP-SGD and compare with the claimed ε",
    "sample_size": "how many records a budget needs",
    "schema": "help with the public schema of a table",
}


def main() -> int:
    """Dispatch to the verb's module."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print("usage: dpml VERB …   (dpml VERB --help for each)\n")
        for verb, text in VERBS.items():
            print(f"  {verb:<12} {text}")
        return 0
    verb = sys.argv[1].replace("-", "_")
    if verb not in VERBS:
        print(f"dpml: {sys.argv[1]!r} is no verb; there are: {', '.join(VERBS)}", file=sys.stderr)
        return 2
    sys.argv = [f"dpml {verb}", *sys.argv[2:]]
    runpy.run_module(f"dpml.{verb}", run_name="__main__", alter_sys=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
