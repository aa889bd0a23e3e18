"""Rows as the proofs want them, dense and sparse: the decision is per record, and nothing sparse becomes dense."""

import numpy as np
import pytest
from scipy import sparse

from dpml import errors
from dpml.erm import rows

KINDS = [np.asarray, sparse.csr_array, sparse.csr_matrix, sparse.csc_array, sparse.coo_array]
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def dense(x):
    return x.toarray() if sparse.issparse(x) else x


def bounded(x, y, bound=1.0, **more):
    got_x, got_y = rows.bounded_rows(x, y, norm_bound=bound, n_features=x.shape[1], **more)
    if sparse.issparse(x):
        assert got_x.format == "csr"
        assert got_x.has_canonical_format
    assert got_x.dtype == got_y.dtype == np.float64
    return dense(got_x), got_y


def test_good_rows_are_passed_on_without_a_copy():
    x, y = np.eye(3), np.array([1.0, -1.0, 1.0])
    got_x, got_y = rows.bounded_rows(x, y, norm_bound=1.0, n_features=3)
    assert got_x is x
    assert got_y is y
    thin = sparse.csr_array(x)
    got_x, got_y = rows.bounded_rows(thin, y, norm_bound=1.0, n_features=3)
    assert np.shares_memory(got_x.data, thin.data)
    assert got_y is y


@kinds
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("label", [1.0, -1.0])
def test_a_row_with_nan_or_infinity_contributes_nothing(kind, bad, label):
    got_x, got_y = bounded(kind(np.array([[0.1, 0.2], [bad, 0.0]])), [1, label])
    assert (got_x == [[0.1, 0.2], [0.0, 0.0]]).all()
    assert (np.abs(got_y) == 1.0).all()


@kinds
@pytest.mark.parametrize("label", [0.0, 2.0, np.nan, np.inf])
def test_a_row_with_another_label_contributes_nothing(kind, label):
    got_x, got_y = bounded(kind(np.array([[0.1, 0.2], [0.3, 0.0]])), [-1, label])
    assert (got_x == [[0.1, 0.2], [0.0, 0.0]]).all()
    assert list(got_y) == [-1.0, 1.0]


@kinds
def test_real_targets_are_clipped_and_nan_contributes_nothing(kind):
    x = np.full((6, 2), 0.25)
    got_x, got_y = bounded(kind(x), [0.0, -3.0, np.nan, np.inf, 0.7, -np.inf], real_targets=True)
    assert got_y.tolist() == [0.0, -1.0, 0.0, 1.0, 0.7, -1.0]
    assert got_x.tolist() == [[0.25, 0.25]] * 2 + [[0.0, 0.0]] + [[0.25, 0.25]] * 3


def test_real_targets_in_range_are_passed_on():
    y = np.array([0.5, -1.0])
    assert rows.bounded_rows(np.eye(2), y, norm_bound=1.0, n_features=2, real_targets=True)[1] is y


@kinds
@pytest.mark.parametrize("scale", [1.5, 1e9, 1e200, 1e308])
def test_a_long_row_is_scaled_to_the_bound_in_its_direction(kind, scale):
    whole = np.array([[0.6, 0.8], [0.1, 0.0], [0.0, 0.0]])
    whole[0] *= scale
    given = kind(whole.copy())
    got, _ = bounded(given, [1, 1, 1], bound=0.5)
    assert got == pytest.approx(np.array([[0.3, 0.4], [0.1, 0.0], [0.0, 0.0]]), rel=1e-12)
    assert (dense(given) == whole).all()


@kinds
def test_what_happens_to_a_row_does_not_depend_on_the_others(kind):
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(40, 3)) * 2 * (rng.random((40, 3)) < 0.7), np.ones(40)
    x[3, 1], x[9, 0], y[5] = np.nan, 1e200, 7.0
    together, _ = bounded(kind(x), y)
    for i in range(40):
        alone, _ = bounded(kind(x[i : i + 1]), y[i : i + 1])
        assert together[i] == pytest.approx(alone[0], rel=1e-15)
    assert np.linalg.norm(together, axis=1).max() <= 1.0 + 1e-12


def test_sparse_and_dense_agree():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(200, 12)) * (rng.random((200, 12)) < 0.3) * np.exp(rng.normal(size=(200, 1)) * 3)
    x[rng.random((200, 12)) < 0.01] = np.inf
    y = rng.choice([1.0, -1.0, 0.0], 200)
    thick, thin = (bounded(kind(x), y) for kind in (np.asarray, sparse.csr_array))
    assert thin[0] == pytest.approx(thick[0], rel=1e-14)
    assert (thin[1] == thick[1]).all()


def test_an_entry_given_twice_counts_as_its_sum_and_the_input_stays():
    """Each of the two is short enough, their sum is not: were they bounded one by one, the row would be too long."""
    x = sparse.csr_array((np.array([0.8, 0.8, np.inf, -np.inf]), np.array([1, 1, 0, 0]), np.array([0, 2, 4])), (2, 2))
    x.has_canonical_format = True  # a flag that lies
    got, _ = bounded(x, [1, 1])
    assert got == pytest.approx(np.array([[0.0, 1.0], [0.0, 0.0]]))
    assert x.nnz == 4


def test_other_number_types_become_float64():
    for kind in (np.float32, np.int64, bool):
        got, _ = bounded(sparse.csr_array(np.eye(2, dtype=kind)), [1, 1])
        assert (got == np.eye(2)).all()


def test_indexes_that_point_outside_are_refused():
    x = sparse.csr_array(np.eye(2))
    x.indices[:] = 1_000_000
    with pytest.raises(errors.DataError, match="no valid sparse array"):
        rows.bounded_rows(x, [1, 1], norm_bound=1.0, n_features=2)


def test_nothing_is_made_dense(monkeypatch):
    """A million columns and rows: dense would take 8 TB."""
    x = sparse.csr_array((np.full(3, 5.0), np.array([0, 7, 999_999]), np.r_[0, 2, np.full(999_999, 3)]), (10**6, 10**6))
    for name in ("toarray", "todense"):
        monkeypatch.setattr(sparse.csr_array, name, lambda *rest: pytest.fail("made dense"))
    got, _ = rows.bounded_rows(x, np.ones(10**6), norm_bound=1.0, n_features=10**6)
    assert got.data == pytest.approx([0.5**0.5, 0.5**0.5, 1.0])


@pytest.mark.parametrize(
    ("x", "y"), [(np.zeros((2, 3)), np.zeros(2)), (np.zeros(2), np.zeros(2)), (np.zeros((2, 2)), [1])]
)
@pytest.mark.parametrize("kind", [np.asarray, sparse.coo_array])
def test_shapes_that_do_not_fit_the_plan_are_refused(kind, x, y):
    with pytest.raises(errors.DataError, match="must have shape"):
        rows.bounded_rows(kind(x), y, norm_bound=1.0, n_features=2)


@kinds
def test_empty_tables_are_fine(kind):
    got_x, got_y = bounded(kind(np.zeros((0, 2))), np.zeros(0))
    assert got_x.shape == (0, 2)
    assert got_y.shape == (0,)
