"""The console script ``dpml VERB …``, the same as ``python -m dpml.VERB …``."""

from __future__ import annotations

import difflib
import runpy
import sys

VERBS = {
    "train": "train a model under one (ε, δ), or sweep over budgets",
    "predict": "score a new table with a released model",
    "verify": "recompute a run's ε from its ledger",
    "report": "rebuild the HTML report of a run or sweep",
    "account": "privacy accounting without training",
    "audit": "attack a run and compare with the claimed ε",
    "sample_size": "how many records a budget needs",
    "schema": "help with the public schema of a table",
}

HELP = """usage: dpml VERB …      (or python -m dpml.VERB …; dpml VERB --help for each; dpml --version)

From a private table to a released model under one honest (ε, δ).

{verbs}

examples:
  dpml train method=objective hydra.run.dir=first      the bundled Adult table at ε = 1, in seconds
  dpml verify first                                    does its ledger hold, and is ε what was paid?
  dpml schema draft people.csv -o people.json          begin with a table of your own
  dpml account epsilon --noise-multiplier 1 --sample-rate 0.01 --steps 1000 --delta 1e-5
  dpml sample_size d=133 epsilon=1 delta=1e-5          how many records do I need?"""


def main() -> int:
    """Dispatch to the verb's module."""
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help", "help"):
        print(HELP.format(verbs="\n".join(f"  {verb:<12} {text}" for verb, text in VERBS.items())))
        return 0
    if words[0] in ("-V", "--version"):
        from dpml.version import __version__

        print(f"dpml {__version__}")
        return 0
    verb = words[0].replace("-", "_")
    if verb not in VERBS:
        print(f"error: {_no_verb(words[0])}", file=sys.stderr)
        return 2
    sys.argv = [f"dpml {verb}", *words[1:]]
    runpy.run_module(f"dpml.{verb}", run_name="__main__", alter_sys=False)
    return 0


def _no_verb(word: str) -> str:
    """What is wrong with the first word, and the likely way out."""
    if "=" in word or word.startswith(("+", "-m")):
        return f"{word!r} is no verb. Did you mean: dpml train {word}"
    near = difflib.get_close_matches(word.replace("-", "_").lower(), VERBS, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"{word!r} is no verb; there are: {', '.join(VERBS)}.{hint} (dpml --help shows examples)"


if __name__ == "__main__":
    sys.exit(main())
