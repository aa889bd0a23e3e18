"""Planted bugs in image features and their centre: each patches one seam, and the named check must fail under it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import image_checks as checks
import numpy as np
import pytest
from image_checks import few_public_images, write_idx
from view_checks import check_a_record_of_two_views_moves_the_sum_by_at_most_c

from dpml.accounting import Ledger
from dpml.data import image_source
from dpml.data.images import cache
from dpml.data.images import rows as image_rows
from dpml.mechanisms.answers import Answer
from dpml.mechanisms.gaussian import GaussianMechanism
from dpml.sgd.clipping import Clipper
from dpml.stages.center import CenterFinder

__all__ = ["few_public_images"]
pytestmark = pytest.mark.usefixtures("few_public_images")


# -- checks that only this file has -----------------------------------------------------------------------------------
def check_features_of_changed_images_are_not_taken_from_the_cache(folder: Path) -> None:
    images = write_idx(folder / "idx", 12)
    before = checks.records_of(images, folder / "cache").X
    write_idx(images, 12, seed=1)
    after = checks.records_of(images, folder / "cache").X
    assert np.array_equal(after, checks.records_of(images, "off").X)
    assert not np.array_equal(after, before)


def check_a_damaged_cache_is_not_used(folder: Path) -> None:
    images = write_idx(folder / "idx", 12)
    before = checks.records_of(images, folder / "cache").X
    for path in (folder / "cache").glob("*.npy"):
        raw = bytearray(path.read_bytes())
        raw[-2] ^= 0x40
        path.write_bytes(raw)
    assert np.array_equal(checks.records_of(images, folder / "cache").X, before)


def check_the_cache_is_its_owners_alone(folder: Path) -> None:
    images = write_idx(folder / "idx", 5)
    checks.records_of(images, folder / "cache")
    for path in (folder / "cache", *(folder / "cache").iterdir()):
        assert path.stat().st_mode & 0o077 == 0


ALONE = (
    checks.check_a_row_depends_on_its_image_alone,
    checks.check_no_row_is_longer_than_one,
    checks.check_the_center_is_charged_as_it_is_noised,
    checks.check_one_record_moves_the_sum_by_at_most_one,
    check_a_record_of_two_views_moves_the_sum_by_at_most_c,
)
WITH_A_FOLDER = (
    checks.check_the_center_is_charged_first_and_noisy,
    check_features_of_changed_images_are_not_taken_from_the_cache,
    check_a_damaged_cache_is_not_used,
    check_the_cache_is_its_owners_alone,
)


@pytest.mark.parametrize("check", [*ALONE, *WITH_A_FOLDER])
def test_checks_pass_unpatched(check: Callable[..., None], tmp_path: Path) -> None:
    check(*(() if check in ALONE else (tmp_path,)))


def caught(check: Callable[..., None], *folder: Path) -> None:
    with pytest.raises(AssertionError):
        check(*folder)


# -- the bugs ---------------------------------------------------------------------------------------------------------
def test_whitening_by_the_records_themselves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every row then depends on all others, which no clipping of gradients accounts for."""
    real = image_rows.feature_rows

    def own(images: np.ndarray, preprocessing: Any, *rest: Any) -> np.ndarray:
        scaled = np.clip(np.asarray(images, dtype=float) * preprocessing["scale"], 0.0, 1.0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(image_rows, "_whitening", lambda block, *_: image_rows.whitening_of(
                image_rows.log_layers(block, scaled)
            ))  # fmt: skip
            return real(images, preprocessing, *rest)

    monkeypatch.setattr(checks, "feature_rows", own)
    caught(checks.check_a_row_depends_on_its_image_alone)


def test_a_batch_normalised_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole(rows: np.ndarray) -> np.ndarray:
        flat = rows.reshape(len(rows), -1).astype(np.float64)
        largest = np.linalg.norm(flat, axis=1).max()
        return (flat * (1 - 1e-6) / largest).astype(np.float32).reshape(rows.shape)

    monkeypatch.setattr(image_rows, "unit", whole)
    caught(checks.check_a_row_depends_on_its_image_alone)


def test_rows_that_keep_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_rows, "unit", lambda rows: np.asarray(rows, dtype=np.float32))
    caught(checks.check_no_row_is_longer_than_one)


def test_a_constant_that_is_not_divided_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_rows.math, "sqrt", lambda value: 1.0)
    caught(checks.check_no_row_is_longer_than_one)


def test_a_center_without_noise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(GaussianMechanism, "release", lambda self, value, noise=None: Answer(value, self))
    caught(checks.check_the_center_is_charged_first_and_noisy, tmp_path)


def test_a_center_that_is_not_charged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The run's own recomputation stops it too; here the ledger's lines are looked at."""
    real = Ledger.charge

    def forgetful(self: Ledger, event: Any, *, stage: str, count: int = 1) -> None:
        if stage != "center":
            real(self, event, stage=stage, count=count)

    monkeypatch.setattr(Ledger, "charge", forgetful)
    monkeypatch.setattr("dpml.trainer.recompute", lambda trainer, plan, ledger: (plan.guarantee, "best"))
    caught(checks.check_the_center_is_charged_first_and_noisy, tmp_path)


def test_a_center_noised_for_one_contribution_under_replace_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def one(self: CenterFinder) -> GaussianMechanism:
        return GaussianMechanism(1.0, epsilon=self.epsilon, delta=self.delta, dimension=self.dimension)

    monkeypatch.setattr(CenterFinder, "mechanism", property(one))
    caught(checks.check_the_center_is_charged_as_it_is_noised)


def test_a_center_of_rounded_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums in single precision: what one record adds depends on the others and on the order."""

    def single(self: CenterFinder, rows: np.ndarray) -> np.ndarray:
        return np.cumsum(np.asarray(rows, dtype=np.float32), axis=0, dtype=np.float32)[-1].astype(np.float64)

    monkeypatch.setattr(CenterFinder, "total", single)
    caught(checks.check_one_record_moves_the_sum_by_at_most_one)


def test_a_cache_that_knows_files_by_name_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(image_source, "source_key", lambda path: {"path": str(path)})
    caught(check_features_of_changed_images_are_not_taken_from_the_cache, tmp_path)


def test_a_checksum_that_is_not_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cache, "checksum", lambda rows: 0)
    caught(check_a_damaged_cache_is_not_used, tmp_path)


def test_features_that_everybody_can_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = cache.os.open
    monkeypatch.setattr(cache.os, "open", lambda path, flags, mode=0o777: real(path, flags, 0o644))
    caught(check_the_cache_is_its_owners_alone, tmp_path)


def test_views_of_a_record_clipped_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each view is cut to C and they are added up: one record moves the sum by 2 C."""
    real = Clipper.sums

    def by_view(self: Clipper, batch: Any, *rest: Any) -> Any:
        X, y = batch
        found = [real(self, (X[:, k : k + 1], y), *rest) for k in range(X.shape[1])]
        return {name: sum(sums[name] for sums, _ in found) for name in found[0][0]}, found[0][1]

    monkeypatch.setattr(Clipper, "sums", by_view)
    caught(check_a_record_of_two_views_moves_the_sum_by_at_most_c)
