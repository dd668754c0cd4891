"""Every measure, with loops over queries, keys and heads, on vectors that are written out in full. Slow on purpose.

Equations as in the design: `f_h(x) = (x W_V + b_V) W_O`, a part is `sum_h alpha_hij f_h(x_j)` carried through whatever
stands between attention and the place where one looks; biases belong to no part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reference.blocks import Array, Attention, Norm

WEIGHT_MAPS = ("attn_w", "attnres_w")
VECTOR_MAPS = ("attn_n", "attnres_n", "attnresln_n")


@dataclass
class Parts:
    """The vectors of one sequence: `parts[map][i, j]` is what key j brings to query i; residuals by query."""

    f: Array  # head key width
    alpha: Array  # head query key
    x: Array  # key width
    parts: dict[str, Array]
    residual: dict[str, Array]  # all zeros where the map has none
    bias: dict[str, Array]  # what belongs to no part, by query
    cross: bool
    by_head: Array  # head query key width: the weighted vectors, with factor and gate
    gated: bool  # whether a gate makes f depend on the query


def scale_of(norm: Norm, y: Array) -> float:
    """`s(y)`."""
    if norm.centred:
        y = y - y.mean()
    return float(np.sqrt((y**2).mean() + norm.eps))


def linear_part(norm: Norm, vector: Array, s: float) -> Array:
    """`gamma * (v - mean(v)) / s`."""
    if norm.centred:
        vector = vector - vector.mean()
    return norm.gamma * vector / s


def parts_of(block: Attention, row: int, queries: Array, keys: Array) -> Parts:
    """All vectors of one sequence of the batch; `queries` and `keys` are its real positions."""
    heads, width = block.alpha.shape[1], block.output_weight.shape[2]
    f = np.zeros((heads, len(keys), width))
    for h in range(heads):
        for j, key in enumerate(keys):
            value = block.x[row, key] @ block.value_weight[h] + block.value_bias[h]
            f[h, j] = value @ block.output_weight[h]
    alpha = block.alpha[row][:, queries][:, :, keys]
    by_head = np.zeros((heads, len(queries), len(keys), width))
    for h in range(heads):
        for i, query in enumerate(queries):
            factor = 1.0 if block.factor is None else block.factor[row, h, query]
            for j, key in enumerate(keys):
                vector = f[h, j]
                if block.gate is not None:
                    value = block.x[row, key] @ block.value_weight[h] + block.value_bias[h]
                    vector = (block.gate[row, query, h] * value) @ block.output_weight[h]
                by_head[h, i, j] = alpha[h, i, j] * factor * vector
    cross = block.kind == "cross"
    shape = (len(queries), len(keys), width)
    parts = {name: np.zeros(shape) for name in VECTOR_MAPS}
    residual = {name: np.zeros((len(queries), width)) for name in VECTOR_MAPS}
    bias = {name: np.zeros((len(queries), width)) for name in VECTOR_MAPS}
    for i, query in enumerate(queries):
        attention = np.zeros((len(keys), width))
        for j in range(len(keys)):
            for h in range(heads):
                attention[j] += by_head[h, i, j]
        parts["attn_n"][i], bias["attn_n"][i] = attention, block.output_bias
        branch, branch_bias = attention, block.output_bias
        if block.branch_norm is not None:
            s = scale_of(block.branch_norm, attention.sum(0) + block.output_bias)
            branch = np.stack([linear_part(block.branch_norm, part, s) for part in attention])
            branch_bias = linear_part(block.branch_norm, block.output_bias, s) + block.branch_norm.beta
        branch, branch_bias = branch * block.branch_scale, branch_bias * block.branch_scale
        if block.others is not None:
            branch_bias = branch_bias + block.others[row, query]
        stream = block.residual[row, query]
        parts["attnres_n"][i], bias["attnres_n"][i], residual["attnres_n"][i] = branch, branch_bias, stream
        last, last_bias, last_stream = branch, branch_bias, stream
        if block.post_norm is not None:
            s = scale_of(block.post_norm, branch.sum(0) + branch_bias + stream)
            last = np.stack([linear_part(block.post_norm, part, s) for part in branch])
            last_bias = linear_part(block.post_norm, branch_bias, s) + block.post_norm.beta
            last_stream = linear_part(block.post_norm, stream, s)
        parts["attnresln_n"][i], bias["attnresln_n"][i], residual["attnresln_n"][i] = last, last_bias, last_stream
        if not cross:  # the residual is the query's own: it joins the part of the same position
            for name in ("attnres_n", "attnresln_n"):
                parts[name][i, i] = parts[name][i, i] + residual[name][i]
    return Parts(f, alpha, block.x[row][keys], parts, residual, bias, cross, by_head, block.gate is not None)


def rebuilt(found: Parts, name: str) -> Array:
    """Everything added up: what the model must hold at the place of this map."""
    total = found.parts[name].sum(1) + found.bias[name]
    return total + found.residual[name] if found.cross else total


def measures(found: Parts) -> dict[str, Array]:
    """The nine measures of one sequence and one layer."""
    out = {"alpha": found.alpha, "x_norm": np.linalg.norm(found.x, axis=-1)}
    if not found.gated:
        out["f_norm"] = np.linalg.norm(found.f, axis=-1)
    out["af_norm"] = np.linalg.norm(found.by_head, axis=-1)
    out |= weight_maps(found)
    for name in VECTOR_MAPS:
        out[name] = np.linalg.norm(found.parts[name], axis=-1)
    return out


def weight_maps(found: Parts) -> dict[str, Array]:
    """ATTN-W and ATTNRES-W."""
    mean = found.alpha.mean(0)
    return {"attn_w": mean, "attnres_w": 0.5 * mean + (0 if found.cross else 0.5 * np.eye(len(mean)))}


def residual_norms(found: Parts) -> dict[str, Array]:
    """What the residual brings beside the source positions, for cross-attention."""
    out = {name: np.linalg.norm(found.residual[name], axis=-1) for name in ("attnres_n", "attnresln_n")}
    return out | {"attnres_w": np.full(found.alpha.shape[1], 0.5)}


def mixing_ratios(found: Parts, query_words: Array | None = None, key_words: Array | None = None) -> dict[str, Array]:
    """`‖context‖ / (‖context‖ + ‖self‖)` by query; with words, the self part is all of a word's own subwords."""
    queries, keys = found.alpha.shape[1:]
    query_words = np.arange(queries) if query_words is None else query_words
    key_words = np.arange(keys) if key_words is None else key_words
    out: dict[str, Array] = {}
    for name, weights in weight_maps(found).items():
        if found.cross and name == "attn_w":
            continue
        ratio = np.zeros(queries)
        for i in range(queries):
            own = 0.5 if found.cross else sum(weights[i, j] for j in range(keys) if key_words[j] == query_words[i])
            others = sum(weights[i, j] for j in range(keys) if found.cross or key_words[j] != query_words[i])
            ratio[i] = others / (others + own)
        out[name] = ratio
    for name in VECTOR_MAPS:
        if found.cross and name == "attn_n":
            continue
        ratio = np.zeros(queries)
        for i in range(queries):
            width = found.f.shape[-1]
            own, context = np.zeros(width), np.zeros(width)
            for j in range(keys):
                if not found.cross and key_words[j] == query_words[i]:
                    own += found.parts[name][i, j]
                else:
                    context += found.parts[name][i, j]
            if found.cross:
                own = found.residual[name][i]
            ratio[i] = np.linalg.norm(context) / (np.linalg.norm(context) + np.linalg.norm(own))
        out[name] = ratio
    return out


def by_word(found: Parts, query_words: Array, key_words: Array, how: str) -> dict[str, Array]:
    """The nine measures by word: key columns added (as norms or as vectors), query rows averaged."""
    rows, columns = query_words.max() + 1, key_words.max() + 1
    per_token = measures(found)
    heads = len(found.alpha)

    def averaged(values: Array) -> Array:  # ..., query, word
        return np.stack([values[..., query_words == word, :].mean(-2) for word in range(rows)], axis=-2)

    def added(values: Array) -> Array:  # ..., key
        return np.stack([values[..., key_words == word].sum(-1) for word in range(columns)], axis=-1)

    out = {name: averaged(added(per_token[name])) for name in ("alpha", *WEIGHT_MAPS)}
    if how == "norms":
        out |= {name: averaged(added(per_token[name])) for name in ("af_norm", *VECTOR_MAPS)}
        return out | {name: added(per_token[name]) for name in ("f_norm", "x_norm")}
    members = [np.flatnonzero(key_words == word) for word in range(columns)]
    out["x_norm"] = np.array([np.linalg.norm(found.x[js].sum(0)) for js in members])
    out["f_norm"] = np.array([[np.linalg.norm(found.f[h, js].sum(0)) for js in members] for h in range(heads)])
    af = np.zeros((heads, found.alpha.shape[1], columns))
    for h in range(heads):
        for i in range(found.alpha.shape[1]):
            for word, js in enumerate(members):
                af[h, i, word] = np.linalg.norm(found.by_head[h, i, js].sum(0))
    out["af_norm"] = averaged(af)
    for name in VECTOR_MAPS:
        norms = np.zeros((found.alpha.shape[1], columns))
        for i in range(found.alpha.shape[1]):
            for word, js in enumerate(members):
                norms[i, word] = np.linalg.norm(found.parts[name][i, js].sum(0))
        out[name] = averaged(norms)
    return out


def average_rows(values: Array, query_words: Array) -> Array:
    """A number per query averaged over each word."""
    return np.array([values[query_words == word].mean() for word in range(query_words.max() + 1)])


def singular_values(block: Attention, head: int) -> Array:
    """All singular values of one head's affine map as a linear one (2020, Appendix B), those that are zero included."""
    linear = block.value_weight[head] @ block.output_weight[head]
    width = linear.shape[0]
    augmented = np.zeros((width + 1, linear.shape[1] + 1))
    augmented[:width, :-1] = linear
    augmented[width, :-1] = block.value_bias[head] @ block.output_weight[head]
    augmented[width, -1] = 1
    return np.linalg.svd(augmented, compute_uv=False)


def expansion_rate(block: Attention, variant: str) -> float:
    """`sqrt(sum of squared singular values) / sqrt(d + 1)` of the whole layer's augmented matrix."""
    value = np.concatenate(list(block.value_weight), axis=1)  # width, heads side by side
    bias = np.concatenate(list(block.value_bias))
    output = np.concatenate(list(block.output_weight), axis=0)
    width = value.shape[0]
    augmented = np.zeros((width + 1, output.shape[1] + 1))
    augmented[:width, :-1] = value @ output
    augmented[width, :-1] = bias @ output
    augmented[width, -1] = 1
    if variant == "code" and block.output_bias.any():  # without b_O both are the same
        augmented[:width, -1] += value @ block.output_bias
        augmented[width, -1] += bias @ block.output_bias
    return float(np.sqrt((np.linalg.svd(augmented, compute_uv=False) ** 2).sum()) / np.sqrt(width + 1))
