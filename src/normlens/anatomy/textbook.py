"""Tell attention that is just `softmax(q k^T + mask) v` from attention that does something else as well.

Most families' eager functions are the textbook one with an option or two. Where that is so, the weights can be computed
block by block without ever holding all of them. A call counts as textbook when every option it carries is one that is
understood here *and* the result was seen to equal the family's own on the traced input; everything else runs the
family's own function.
"""

from __future__ import annotations

import torch
from torch import Tensor

from normlens.anatomy.interface import AttentionCall
from normlens.decompose.attend import AttentionInputs, attend

#: Options that change the numbers and are understood.
_UNDERSTOOD = {"scaling", "softcap", "position_bias"}
#: Options that do not change the numbers of an eager function in eval mode: masks carry what they would say.
_WITHOUT_EFFECT = {
    "dropout",
    "is_causal",
    "sliding_window",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "return_dict",
    "use_cache",
    "position_ids",
    "cache_position",
    "layer_idx",
    "deterministic",
    "position_embeddings",
}


def textbook_inputs(call: AttentionCall) -> AttentionInputs | None:
    """The call in textbook form, or None where it carries something that is not understood."""
    options = {name: value for name, value in call.options.items() if value is not None}
    if set(options) - _UNDERSTOOD - _WITHOUT_EFFECT or not _additive(call.mask):
        return None
    return AttentionInputs(
        call.query,
        call.key,
        call.value,
        call.mask,
        float(options.get("scaling", call.query.shape[-1] ** -0.5)),
        options.get("position_bias"),
        options.get("softcap"),
    )


def _additive(mask: Tensor | None) -> bool:
    return mask is None or (mask.is_floating_point() and mask.ndim == 4)


def is_textbook(call: AttentionCall, output: Tensor, alpha: Tensor) -> bool:
    """Whether the textbook form gives the same output and weights as the family's own function."""
    inputs = textbook_inputs(call)
    if inputs is None or call.query.shape[1] % call.key.shape[1] or alpha.ndim != 4:
        return False
    seen: list[Tensor] = []
    ours = attend(inputs, lambda block, start: seen.append(block))
    weights = torch.zeros_like(alpha)
    weights[..., : seen[0].shape[-1]] = seen[0]
    tolerance = 64 * torch.finfo(output.dtype).eps
    return _close(ours, output, tolerance) and _close(weights, alpha, tolerance)


def _close(ours: Tensor, theirs: Tensor, tolerance: float) -> bool:
    if ours.shape != theirs.shape:
        return False
    scale = float(theirs.abs().max())
    return float((ours - theirs).abs().max()) <= tolerance * max(scale, 1e-30)
