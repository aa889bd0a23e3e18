"""Multi-head attention out of ``F.linear`` calls, so that every use of its weights is one that is known.

What ``nn.MultiheadAttention`` (and the layers of ``nn.Transformer``) compute: softmax(q kᵀ/√d + mask) v for each head
(Vaswani et al. 2017, section 3.2), with the packed projection of queries, keys and values.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from dpml.sgd.uses import Unsupported


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: torch.Tensor | None,
    in_proj_bias: torch.Tensor | None,
    bias_k: torch.Tensor | None,
    bias_v: torch.Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: torch.Tensor,
    out_proj_bias: torch.Tensor | None,
    training: bool = True,
    key_padding_mask: torch.Tensor | None = None,
    need_weights: bool = True,
    attn_mask: torch.Tensor | None = None,
    use_separate_proj_weight: bool = False,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    **unusual: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``F.multi_head_attention_forward``: query (L, B, E), key and value (S, B, E); output (L, B, E) and weights.

    Raises:
        Unsupported: separate projections, key or value biases, zero attention, static keys, or no axis of records.
    """
    rare = (bias_k, bias_v, *unusual.values())
    if use_separate_proj_weight or add_zero_attn or any(v is not None for v in rare) or in_proj_weight is None:
        raise Unsupported("attention with separate projections, extra biases, zero attention or static keys")
    if query.ndim != 3:
        raise Unsupported("attention without an axis of records")
    length, records, width = query.shape
    projected: dict[int, torch.Tensor] = {}
    for x in (query, key, value):  # one product for each different input: one in self-attention
        if id(x) not in projected:
            projected[id(x)] = F.linear(x, in_proj_weight, in_proj_bias)

    def heads(x: torch.Tensor, part: int) -> torch.Tensor:
        mine = projected[id(x)][..., part * width : (part + 1) * width]
        return mine.reshape(x.shape[0], records, num_heads, width // num_heads).permute(1, 2, 0, 3)

    q, k, v = heads(query, 0), heads(key, 1), heads(value, 2)
    if is_causal and attn_mask is None:
        raise Unsupported("attention with is_causal and no mask")
    mask = _mask(attn_mask, key_padding_mask, records, num_heads, q.dtype)
    drop = dropout_p if training else 0.0
    weights = None
    if need_weights:
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // num_heads)
        weights = F.dropout(torch.softmax(scores if mask is None else scores + mask, dim=-1), drop, training)
        out = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=drop)
    out = out.permute(2, 0, 1, 3).reshape(length, records, width)
    return F.linear(out, out_proj_weight, out_proj_bias), weights


def _mask(
    mask: torch.Tensor | None, padding: torch.Tensor | None, records: int, heads: int, dtype: torch.dtype
) -> torch.Tensor | None:
    """What is added to the scores, broadcast to (B, H, L, S); True in a Boolean mask means "not this one"."""
    total = None
    if mask is not None:
        added = _additive(mask, dtype)
        total = added if added.ndim == 2 else added.reshape(records, heads, *added.shape[1:])
    if padding is not None:
        added = _additive(padding, dtype)[:, None, None, :]
        total = added if total is None else total + added
    return total


def _additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -math.inf)
