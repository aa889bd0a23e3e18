"""Mutants that no test kills because nothing that matters depends on the change: which, and why.

``ARGUED[file, line of the source without its indent, change] = reason``.  The line is compared as it stands: when it is
changed, the argument must be made anew.
"""

from __future__ import annotations

LATTICE, ROUNDED = "dpml/mechanisms/lattice.py", "dpml/mechanisms/rounded.py"
EXACT = "dpml/accounting/exact.py"
ENGINE, CLIPPING = "dpml/sgd/engine.py", "dpml/sgd/clipping.py"

_BLOCK = "BLOCK = 1 << 14  # coordinates at a time, so that they stay in the processor's cache"
_TILE = "How many coordinates are treated at a time: each is rounded and added by itself, so the bits are the same."
_DRAWS = "BLOCK = 1 << 15  # draws at a time, so that they stay in the processor's cache"
_TRIES = "drawn = self.tries(round(1.1 * missing / self._accepted) + 16, bits)[:missing]"
_AT_ONCE = "How many proposals are made at once: more are made until enough are accepted, each by itself."
_UNSURE = "unsure = 4e-15 * infinite / finite  # of ln δ, by rounding: more than the lower end's margin?"
_LOW = "return (0.0 if only_upper(event) or is_bound_only(atoms) or unsure > contour.LOWER_MARGIN else low), high"
_HIGH = "return (0.0 if unknown else infinite * _DOWN + low), min(1.0, (infinite + high) * (1 + 1e-15))"
_TOTAL = "total = parts[0].clone() if len(parts) == 1 else parts[0] + parts[1]"
_SHARED = "SHARED = 2**14"
_ROWS = "How large a parameter may be that shares a row: each number is rounded and gets its noise by itself."
_ROW = "row = values[0].reshape(-1) if len(values) == 1 else torch.cat([value.reshape(-1) for value in values])"
_LEAST = "least = 1 if self.fault is not None else min(step, LEAST_RECORDS)"

ARGUED: dict[tuple[str, str, str], str] = {
    (LATTICE, _BLOCK, "1 -> 2"): _TILE,
    (LATTICE, _BLOCK, "14 -> 15"): _TILE,
    (LATTICE, "left = value.reshape(-1)", "1 -> 2"): "NumPy takes any negative length for the one to be found out.",
    (ROUNDED, _DRAWS, "1 -> 2"): "How many draws are made at a time: each has bits of its own, so the law is the same.",
    (ROUNDED, _TRIES, "Div -> Mult"): _AT_ONCE,
    (ROUNDED, _TRIES, "Mult -> Div"): _AT_ONCE,
    (ROUNDED, _TRIES, "16 -> 17"): _AT_ONCE,
    (EXACT, _UNSURE, "4e-15 -> 8e-15"): (
        "A margin on the safe side, doubled: the lower end becomes 0 where the statements' own δ is 125 times what is "
        "left of δ instead of 250 times. It stays a lower bound; the guarantee is the upper end."
    ),
    (EXACT, _LOW, "Gt -> GtE"): (
        "Differs only where 4e-15 · infinite / finite is 1e-12 to the last bit, and then gives the smaller lower end, "
        "0, which is always valid."
    ),
    (EXACT, "raised = delta * (1 + 3 * slack)", "Mult -> Div"): (
        "Only where the search for a lower end starts: at the upper end instead of a little below it. The loop below "
        "moves down until δ there, less all rounding, is above δ, wherever it starts (this loop is tested)."
    ),
    (EXACT, "if slack > 1e-3 or raised >= 1:", "Gt -> GtE"): (
        "Differs only for a slack of 1e-3 to the last bit, and then gives the lower end 0, which is always valid."
    ),
    (EXACT, "low = low * (1 - step) if step < 0.5 else 0.0", "0.5 -> 1.0"): (
        "One more attempt before the search for a lower end is given up at 0, checked like every other: at most a "
        "better lower end, and only where δ has not been met down to about half of ε."
    ),
    (EXACT, "low = math.exp(log_low) if log_low > -745 else 0.0", "745 -> 746"): (
        "exp of a number from -746 to -745 is 0 or the smallest float, 5e-324: a lower end of δ that nobody can tell "
        "from 0."
    ),
    (EXACT, _HIGH, "1e-15 -> 2e-15"): (
        "The upper end of δ is rounded up by a few units in the last place more: still a bound, and no looser than "
        "the contour sum itself, whose error is larger."
    ),
    (ENGINE, _SHARED, "14 -> 15"): _ROWS,
    (ENGINE, _SHARED, "14 -> 13"): _ROWS,
    (ENGINE, _ROW, "1 -> 0"): "A single value is then copied by cat: the same numbers.",
    (ENGINE, _ROW, "0 -> -1"): "The last of one value is the first.",
    (ENGINE, 'most = PIECE if device.type == "cpu" else max(1, sum(sizes))', "1 -> 2"): (
        "Only for a model of one number on CUDA: a piece has room for two."
    ),
    (ENGINE, "if not (least >= -MAX_STEPS and greatest <= MAX_STEPS):", "GtE -> Gt"): (
        "Differs only for a sum of exactly -2^52 steps, which is then clamped to -2^52 steps: the same number."
    ),
    (ENGINE, "if not (least >= -MAX_STEPS and greatest <= MAX_STEPS):", "USub dropped"): (
        "Every sum is then looked at for NaN and clamped to ±2^52 steps, which leaves those within as they are."
    ),
    (CLIPPING, "_MOST_FINDINGS = 32", "32 -> 31"): "How many models are remembered: others are looked at again.",
    (CLIPPING, "halve = size > 1", "1 -> 2"): (
        "Two records of which one fails are run alone instead of halved first: the same gradients."
    ),
    (CLIPPING, "return torch.where(factors >= LEAST_FACTOR, factors, 0.0)", "GtE -> Gt"): (
        "Differs only for a factor of the limit to the last bit: a contribution that is 1e-30 as long as its gradient, "
        "clipped as all others, or none."
    ),
    (CLIPPING, "return max(1, min(MOST_RECORDS, values // max(n_values, 1)))", "1 -> 2"): (
        "The 1 is there against a division by zero; with 0 or 1 parameters the limit of 4096 records holds either way."
    ),
    (CLIPPING, _LEAST, "1 -> 0"): "At least 0 records or at least 1: neither fills up a batch that holds any.",
    (CLIPPING, _LEAST, "1 -> 2"): (
        "For a model that fails on zeros, a single record would be run beside zeros, fail with them, and then be run "
        "alone as it is now: the same gradient, later."
    ),
    (CLIPPING, "if records is not None and records < factors.shape[0]:", "Lt -> LtE"): (
        "Where both are equal nothing comes after the first records, and zeros are written to nothing."
    ),
    (CLIPPING, _TOTAL, "0 -> -1"): "Of a list of one the first is the last.",
}  # fmt: skip
