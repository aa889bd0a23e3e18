"""The margin of section 7 of docs/proofs-floats.md: sums of clipped contributions that float32 products form."""

import pytest
import torch


def gradient_sum(inputs, outputs):
    """Σ over records and positions of input ⊗ output: (B, T, i), (B, T, o) → (i, o), in their dtype."""
    return inputs.reshape(-1, inputs.shape[2]).T @ outputs.reshape(-1, outputs.shape[2])


@pytest.mark.parametrize(
    ("width", "classes", "positions", "alike"),
    [(10, 1, 1, False), (10, 1, 1, True), (512, 2, 1, False), (512, 2, 1, True), (64, 64, 32, True)],
)
def test_removing_a_record_moves_a_float32_sum_by_its_norm_and_less_than_the_margin(width, classes, positions, alike):
    """4096 contributions of norm 1, independent or nearly alike (partial sums grow to 4096: large roundings)."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(4096, positions, width, dtype=torch.float64, generator=generator)
    outputs = torch.randn(4096, positions, classes, dtype=torch.float64, generator=generator)
    if alike:
        inputs, outputs = inputs[:1].abs() + 1e-3 * inputs, outputs[:1] + 1e-3 * outputs
    norms = ((inputs @ inputs.mT) * (outputs @ outputs.mT)).sum((1, 2)).sqrt()
    inputs, outputs = inputs.float(), (outputs / norms[:, None, None]).float()
    apart = gradient_sum(inputs, outputs).double() - gradient_sum(inputs[1:], outputs[1:]).double()
    alone = gradient_sum(inputs[:1].double(), outputs[:1].double())
    assert alone.norm() == pytest.approx(1.0, abs=1e-5)
    assert apart.norm() <= alone.norm() + 2.0**-10
    assert (apart - alone).norm() > 0.0  # float32 it is
