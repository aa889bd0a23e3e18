"""What kind of code a planted bug sits in, and whether an audit of finished runs alone could see it.

The verdicts are argued, not measured (``experiments/audit.py`` measures some).  *An audit*: two neighbouring data sets,
a canary made for the bug's code, every noisy step seen, as many runs as the machine gives.  It sees a bug if the law of
what is released then violates the claimed (ε, δ) by more than the gap between an attack and a claim that is true.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

AREAS = (
    "accounting", "audit", "boundary", "data", "erm", "estimators", "ledger", "mechanisms", "noise", "sampler",
    "search", "sessions", "sgd", "stages",
)  # fmt: skip

_OF_FILE = {
    "accountant": "accounting", "accounting": "accounting", "cell": "data", "data": "data", "erm_attack": "erm",
    "erm": "erm", "gd": "erm", "linear": "erm", "kmeans": "estimators", "mechanism": "mechanisms",
    "selection": "mechanisms", "session": "sessions", "search": "search", "ledger": "ledger",
    "resume_command": "ledger", "run": "boundary", "silent_spending": "boundary", "report": "boundary",
    "stage": "stages", "tracking": "boundary", "feature": "data", "audit": "audit", "run_audit": "audit",
    "audit_folder": "audit",
    "sgd_noise": "noise", "sgd_sampling": "sampler", "sgd_resume": "ledger", "sgd_batches": "data",
    "sweep": "ledger", "whitening": "data", "rounded": "noise",
}  # fmt: skip
_OF_SEAM = (
    ("sampler", r"poisson_indices$"),
    ("noise", r"default_noise$|draw_noise$|noise_std$|secrets\."),
    ("boundary", r"CustodianOnly|table_data$|PrivateTrainer\.(plan|_run)$|^kind\.__repr__$"),
    ("ledger", r"Ledger\b|charge(_block|d_steps)?$|write_all$|os\.(write|fsync)$|recompute$|completed_state$"),
)


def topic(file: str) -> str:
    """``test_sgd_noise_bugs(.py)`` -> ``sgd_noise``."""
    return file.removesuffix(".py").removeprefix("test_").removesuffix("_bugs")


def area_of(file: str, seams: Sequence[str], name: str) -> str:
    """One of :data:`AREAS`: by the first seam that says so, else by the file."""
    stem = topic(file)
    own = _OF_FILE.get(stem, "sgd" if stem.startswith("sgd") else "")
    if not own:
        raise KeyError(f"{file}: give its area in tests/planted_bugs/verdicts.py")
    if own in ("sessions", "search", "stages") or "normaliser" in name:
        return own
    return next((area for area, pattern in _OF_SEAM if re.search(pattern, seams[0] if seams else "")), own)


_LAYER = "yes: on a model with that layer, with a canary whose norm comes out too small"
_ATTACK = "yes: the exact attack on a tiny problem finds it, without sampling"
_CRASH = "no: it shows only over a crash and a resume"
_POST = "no: the noisy steps are the same; what follows is post-processing"
_MORE = "no: there is more noise than planned, not less"
_BITS = "no: low bits; an attack compares sizes"
_SMALL = "no: moves epsilon by less than the gap of any attack"
_GUARD = "no: a guard is gone; nothing is wrong until something else is"
_ORDER = "no: what is released is the same; only the order of charge and use is wrong"

_OF_TOPIC = {
    "sgd": "", "sgd_noise": "", "sgd_sampling": "", "sgd_optimizer": "", "sgd_team": "", "sgd_batches": "", "run": "",
    "sgd_one_backward": _LAYER, "sgd_one_function": _LAYER, "sgd_resume": _CRASH, "resume_command": _CRASH,
    "erm_attack": _ATTACK, "erm": _ATTACK, "gd": _ATTACK, "linear": _ATTACK,
}  # fmt: skip
"""Files with bugs of training, and what holds for those that :data:`_OF_NAME` does not list."""

_OF_NAME = {
    # steps of DP-SGD
    "half noise": "yes",
    "no clip": "yes",
    "the drawn batch as normaliser": "yes: with loud records beside the canary, at low noise",
    "the actual number of records in the normaliser": "yes: with loud records beside the canary, at low noise",
    "the actual number of records in the sample rate": _SMALL,
    "noise once per micro batch": _MORE,
    "one noise draw per micro batch from the source": _MORE,
    "one step not recorded": _SMALL,
    "use before the reservation": _ORDER,
    "one noise draw used again": "yes: the difference of two steps has no noise",
    "parameters left out of the pieces": "yes: with a canary in those coordinates",
    "one noise draw shared by coordinates": "yes: the difference of two coordinates has no noise",
    "a nan record that spreads": "yes: with a canary of NaN",
    "charged steps run again": _CRASH,
    "sums in single precision": "no: rounding far below the noise",
    "a record that stops the run": "yes: with a canary that raises",
    "a record that raises takes its half of the batch along": "yes: with a canary that raises beside loud records",
    # noise and grid
    "one key for two streams": "no: slices of a long vector are equal, which a canary in one direction does not meet",
    "uniform draws under the keys of the normal ones": "no: coins and noise are related, but each has its law",
    "a stream that starts again at every request": "yes: the difference of two steps has no noise",
    "a slice left out": "yes: with a canary in those coordinates",
    "a slice filled twice in another ones place": "yes: with a canary in those coordinates",
    "a prefetched vector served twice": "yes: the difference of two steps has no noise",
    "noise used again after a fork": "no: two processes must be compared",
    "a grid without the smaller clip bound": _SMALL,
    "a grid too coarse for its dimension": _SMALL,
    "a grid for one sum where several are rounded": _SMALL,
    "noise not rounded": _BITS,
    "total not rounded": _BITS,
    "a spacing that is no power of two": _BITS,
    "no saturation": "no: needs sums beyond 2^52 steps of the grid",
    "a zero that keeps its sign": _BITS,
    "a step with a zero that keeps its sign": _BITS,
    "a quotient in the type of the sum": _BITS,
    "int32 for any sum": "no: needs sums beyond 2^30 steps of the grid",
    "a step without saturation": "no: needs sums beyond 2^52 steps of the grid",
    # sampling
    "same batch in every step": "yes: a canary is in all steps or in none",
    "one batch for two steps": _SMALL,
    "one coin for all": "yes: with loud records that show whether the batch is there",
    "one coin for two neighbours": "yes: with a loud record as neighbour",
    "the last record never": "no: that record is safer than promised",
    "a public size": "no: its epsilon is hardly larger at the sizes that an attack can repeat",
    "a shuffled epoch": "no: needs an attack made for shuffled batches",
    "undecided coins that all fall": _SMALL,
    "eight coins read as six": "yes: with a canary at such a place",
    "a fixed size with replacement": "no: a canary is rarely drawn twice",
    "a fixed size with neighbours drawn together": "yes: with a loud record as neighbour",
    "a modulo without rejection": _SMALL,
    # optimizers, adaptive clipping
    "the schedule stepped per micro batch": _POST,
    "the count without its noise": "yes: the count is released",
    "a count with a step": "no: needs norms that kernels round in another way in another batch",
    "a count of zeros and ones": "yes: the count is released",
    "the noise of gradients is not raised": _SMALL,
    "a count that is charged too little": _SMALL,
    "every layer clipped at the whole bound": "yes: with a canary that is long in all layers",
    "the noise variance is not subtracted": _POST,
    "the counts are lost in a checkpoint": _POST,
    "fixed size charged as poisson": "no: its epsilon is hardly larger at the sizes that an attack can repeat",
    "the number of records is not checked": _GUARD,
    # several processes
    "same key": _MORE,
    "full noise by all": _MORE,
    "share forgotten by one": "yes",
    "no noise for an empty batch": "yes: with one record in all",
    "local normaliser": "yes: with loud records beside the canary, at low noise",
    "half normaliser": _POST,
    "charged by all": "no: more is charged than used",
    "not waiting for the charge": _ORDER,
    "no barrier": _CRASH,
    "drawn before the barrier": _CRASH,
    "everyone takes all": "yes: a record counts once for each process",
    "own clip": "no: clip bounds of two processes differ little",
    "records not compared": _GUARD,
    "grid of one": _SMALL,
    # one backward pass, one function alone
    "the padding row counted": "no: too much is clipped, not too little",
    "the comparison skipped": "yes: on a model that mixes records",
    "either half of the comparison finds a batch mean": _GUARD,
    "rounding of cancelling positions left out": _SMALL,
    "float32 sums over thousands of records": "no: rounding far below the noise",
    "clip after the sum": "yes",
    "factors that float32 holds coarsely": "no: needs features beyond 10^38 and a clipping norm of 10^-6",
    "without leaves what is not finite": "yes: with a canary of NaN",
    "another axis is seen on made up records": _GUARD,
    "the gradient of the inputs dropped": "no: wrong gradients, clipped as they should be",
    "gradients of the next record": "no: wrong gradients, clipped as they should be",
    "one dropout mask for all records": "no: a record still moves the sum by at most C",
    "a function that mixes by its name": "yes: on a model with batch normalisation",
    "built gradients left out of the micro batch": "no: memory only",
    "a recurrence cut between positions": "no: wrong gradients, clipped as they should be",
    "the way back not turned": "no: wrong gradients, clipped as they should be",
    "a wrong recurrence is not used": _GUARD,
    # stored records
    "unknown labels that are used": "no: still clipped",
    "rows that are not finite and used": "no: a gradient that is not finite is left out later",
    "unusable records that are not counted": "no: matters for samples of fixed size only",
    "a faulty record that takes its batch along": "yes: with a faulty canary beside loud records",
    "rows that are not clipped": "no: DP-SGD clips gradients",
    "a fingerprint that leaves something out": _CRASH,
    # the run as a whole
    "used before the ledger is synced": _ORDER,
    "replace one accounted as add remove": "yes: with a record replaced by its opposite",
    "noise seeded from the config": "yes: every run of the audit has the same noise",
    "actual n in the plan": _SMALL,
    "metrics of private data published": "no: an audit looks at the model",
    "regularization in sum form": "yes: the noise of output perturbation is too small by orders",
    "promise not compared": _GUARD,
    "charges not compared": _GUARD,
    # convex methods
    "charge after use": _ORDER,
    "solution that is not verified": _GUARD,
    "noise seeded from a config seed": "yes: every run of the audit has the same noise",
    "noise from the global generator": "no: it has its law; who knows the generator's state knows the noise",
    "regularization taken in mean form by the solver": "yes: the minimum moves farther than its noise allows",
    "one step less in the event": _SMALL,
    "charged one step less than calibrated": _SMALL,
    "symmetric noise halved twice": "yes",
    "approximation left out or counted once": "no: the solver is far more exact than its bound",
    "residual without the way to the sphere": _GUARD,
    "nan takes part": "yes: with a canary of NaN",
}


def is_training(file: str) -> bool:
    """Whether the bugs of a file are bugs of training, which an audit of runs could meet."""
    return topic(file) in _OF_TOPIC


def audit_verdict(file: str, name: str) -> str:
    """``"yes…"`` or ``"no: why"`` for a bug of training; KeyError where nobody has thought about it yet."""
    for known in (name, name.partition(",")[0]):
        if known in _OF_NAME:
            return _OF_NAME[known]
    general = _OF_TOPIC[topic(file)]
    if not general:
        raise KeyError(f"{file}: {name!r} has no verdict in tests/planted_bugs/verdicts.py")
    return general


def runs_needed(verdict: str) -> str:
    """With how many runs, argued: what is measured is in the registries of bugs that are handed to an audit.

    A difference that has no noise shows as soon as a hundred runs agree.  Where the true ε is about twice the claim,
    exact limits at 99.9 % need some 16,000 runs (``half the noise of output`` has that many); where it is larger by
    less, or one record in many shows it, up to a million.
    """
    if not verdict.startswith("yes"):
        return ""
    if verdict == _ATTACK:
        return "none: computed"
    plain = ("has no noise", "is released", "same noise", "NaN", "raises", "by orders", "whether the batch is there")
    return "some 100 (argued)" if any(words in verdict for words in plain) else "10,000 to 1,000,000 (argued)"


def unused(names: Sequence[str]) -> list[str]:
    """Verdicts on bugs that are no longer there."""
    there = {part for name in names for part in (name, name.partition(",")[0])}
    return sorted(set(_OF_NAME) - there)
