"""LSTM, GRU and plain recurrent layers out of ``F.linear`` calls: every use of their weights is then one that is known.

What ``nn.LSTM``, ``nn.GRU``, ``nn.RNN`` and their cells compute (the equations of torch's documentation; Hochreiter and
Schmidhuber 1997, Cho et al. 2014).  The products with the inputs are one ``F.linear`` over all positions; those with
the hidden state are one a position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from dpml.sgd.uses import Unsupported

State = tuple[torch.Tensor, ...]  # hidden, and for an LSTM the cell
Cell = Callable[[torch.Tensor, State, Sequence[Any]], State]  # (input's product, state, weights) -> next state


def _lstm_step(given: torch.Tensor, state: State, weights: Sequence[Any]) -> State:
    """``weights``: of the hidden state, its bias, and the projection or None."""
    hidden, cell = state
    gates = given + F.linear(hidden, weights[0], weights[1])
    keep_in, forget, candidate, out = gates.chunk(4, -1)
    cell = torch.sigmoid(forget) * cell + torch.sigmoid(keep_in) * torch.tanh(candidate)
    hidden = torch.sigmoid(out) * torch.tanh(cell)
    return (hidden if weights[2] is None else F.linear(hidden, weights[2])), cell


def _gru_step(given: torch.Tensor, state: State, weights: Sequence[Any]) -> State:
    (hidden,) = state
    reset_in, update_in, new_in = given.chunk(3, -1)
    reset, update, new = F.linear(hidden, weights[0], weights[1]).chunk(3, -1)
    new = torch.tanh(new_in + torch.sigmoid(reset_in + reset) * new)
    update = torch.sigmoid(update_in + update)
    return (new + update * (hidden - new),)


def _plain_step(activation: Callable[[torch.Tensor], torch.Tensor]) -> Cell:
    def step(given: torch.Tensor, state: State, weights: Sequence[Any]) -> State:
        return (activation(given + F.linear(state[0], weights[0], weights[1])),)

    return step


_tanh_step, _relu_step = _plain_step(torch.tanh), _plain_step(torch.relu)


def _layers(
    step: Cell,
    x: torch.Tensor,
    states: State,
    weights: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> State:
    """All layers and directions of x ``(T, B, D)`` (``(B, T, D)`` if ``batch_first``); states ``(layers, B, H)``."""
    if x.ndim != 3:
        raise Unsupported("a recurrent layer without an axis of records")
    directions = 2 if bidirectional else 1
    each = len(weights) // (num_layers * directions)
    hidden = x.transpose(0, 1) if batch_first else x
    ends: list[State] = []
    for layer in range(num_layers):
        if layer and dropout and train:
            hidden = F.dropout(hidden, dropout, train)
        results = []
        for direction in range(directions):
            place = layer * directions + direction
            mine = list(weights[place * each : (place + 1) * each])
            first, second, *biases = mine[: 4 if has_biases else 2]
            projection = mine[-1] if each == (5 if has_biases else 3) else None
            of_input, of_hidden = biases or (None, None)
            given = F.linear(hidden, first, of_input).unbind(0)
            state = tuple(values[place] for values in states)
            steps = []
            for one in reversed(given) if direction else given:
                state = step(one, state, (second, of_hidden, projection))
                steps.append(state[0])
            results.append(torch.stack(steps[::-1] if direction else steps))
            ends.append(state)
        hidden = torch.cat(results, -1) if bidirectional else results[0]
    last = tuple(torch.stack(values) for values in zip(*ends, strict=True))
    return (hidden.transpose(0, 1) if batch_first else hidden), *last


def lstm(x: torch.Tensor, states: Any, weights: Any, *options: Any) -> State:
    """``torch.lstm``: (output, last hidden states, last cells)."""
    if isinstance(states, torch.Tensor):
        raise Unsupported("lstm of a packed sequence")
    return _layers(_lstm_step, x, tuple(states), weights, *options)


def _one_state(step: Cell) -> Callable[..., State]:
    def run(x: torch.Tensor, state: torch.Tensor, weights: Any, *options: Any) -> State:
        if not isinstance(state, torch.Tensor) or not state.is_floating_point():
            raise Unsupported("a recurrent layer of a packed sequence")
        return _layers(step, x, (state,), weights, *options)

    return run


def lstm_cell(
    x: torch.Tensor, states: Any, first: Any, second: Any, of_input: Any = None, of_hidden: Any = None
) -> State:
    """``torch.lstm_cell``: (hidden, cell)."""
    return _lstm_step(F.linear(x, first, of_input), tuple(states), (second, of_hidden, None))


def _one_cell(step: Cell) -> Callable[..., torch.Tensor]:
    def run(
        x: torch.Tensor, state: torch.Tensor, first: Any, second: Any, of_input: Any = None, of_hidden: Any = None
    ) -> torch.Tensor:
        return step(F.linear(x, first, of_input), (state,), (second, of_hidden, None))[0]

    return run


WRITTEN_OUT: dict[Any, Callable[..., Any]] = {
    torch.lstm: lstm,
    torch.gru: _one_state(_gru_step),
    torch.rnn_tanh: _one_state(_tanh_step),
    torch.rnn_relu: _one_state(_relu_step),
    torch.lstm_cell: lstm_cell,
    torch.gru_cell: _one_cell(_gru_step),
    torch.rnn_tanh_cell: _one_cell(_tanh_step),
    torch.rnn_relu_cell: _one_cell(_relu_step),
}
