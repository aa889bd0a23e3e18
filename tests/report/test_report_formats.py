"""Numbers in reports: privacy numbers round up, and never below the value."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpml.report import formats


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (0.99981, "0.9999"),
        (0.9999000001, "1"),
        (1.00001, "1.001"),
        (71.7934, "71.8"),
        (1e-5, "1e-5"),
        (3.0000000000000004e-5, "3e-5"),
        (12345678.0, "1.235e7"),
        (0.0, "0"),
        ("inf", "∞"),
        (math.inf, "∞"),
        (None, "–"),
        ("nan", "–"),
        (True, "–"),
        ([1], "–"),
    ],
)
def test_upper_rounds_up(value: object, text: str) -> None:
    assert formats.upper(value) == text


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_upper_is_an_upper_bound_and_close(value: float) -> None:
    shown = Fraction(formats.upper(value))
    assert shown >= Fraction(value) * (1 - Fraction(1, 10**11))
    assert shown <= Fraction(value) * (1 + Fraction(11, 10**4))


@given(st.floats(min_value=0, max_value=1))
def test_percent_upper_is_an_upper_bound(share: float) -> None:
    shown = Fraction(formats.percent_upper(share).split("\u00a0")[0])
    assert 0 <= shown - 100 * Fraction(share) + Fraction(1, 10**9) <= Fraction(11, 100)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (36177, "36\u202f177"), (1000, "1000"), (1000.0, "1000"), (0.027641872, "0.0276419"), (1e-7, "1e-7"),
        (-3, "-3"), (0.0, "0"), ("inf", "∞"), ("-inf", "−∞"), ("word", "–"),
    ],
)  # fmt: skip
def test_general(value: object, text: str) -> None:
    assert formats.general(value) == text


def test_words_for_tables() -> None:
    assert formats.words({"a": [1, True], "b": None, "c": "inf"}) == "a: 1, yes; b: –; c: ∞"
    assert formats.words([]) == "–"
    assert formats.words({}) == "–"
    assert formats.method("dp_sgd") == "DP-SGD"
    assert formats.method("new_one") == "new_one"
    assert formats.relation("replace_one") == "replace one record by another (replace_one)"
    assert formats.relation("other") == "other"
    assert formats.percent(0.85123) == "85.12\u00a0%"


@pytest.mark.parametrize(
    ("epsilon", "text"),
    [
        (8.0, "99.97"), (4.0, "98.3"), (10.0, "99.996"), (12.0, "99.9994"), (40.0, "100.0"),
    ],
)  # fmt: skip
def test_what_is_not_all_is_not_a_hundred_per_cent(epsilon: float, text: str) -> None:
    """By hand: 1/(1 + e^-8) is 0.99966…, e^-10 4.54e-5, e^-12 6.1e-6; 40 is beyond what four more decimals tell."""
    assert formats.percent_upper(1 / (1 + math.exp(-epsilon))) == f"{text}\u00a0%"
    assert formats.percent_upper(1.0) == "100.0\u00a0%"
    assert formats.percent_upper(1.0, 2) == "100.00\u00a0%"
    assert formats.percent_upper(1.2) == "120.0\u00a0%"


@pytest.mark.parametrize("mark", ["\u202e", "\u061c", "\u00ad", "\u2028", "\u200f", "\u206a", "\U000e0041", "\ufff9"])
def test_what_is_not_seen_is_shown(mark: str) -> None:
    assert formats.visible(f"a{mark}b שלום é 漢\n") == "a\ufffdb שלום é 漢\n"
