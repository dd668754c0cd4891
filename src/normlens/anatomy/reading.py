"""Read a model's anatomy from one traced forward pass.

The rule, the same for every family: start where an attention ends, follow its output to the linear map that takes it
(`projection`), follow that map's output to the addition with a value that attention itself came from, the residual, and
look whether the sum goes through a normalization before anything else sees it (`joining`). What is met on the way (a
gate, a normalization, a constant, a parallel branch) is written down. Then follow the values back to the linear map
that made them (`values`). Whatever is read here is only believed after the reconstruction proof.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from normlens.anatomy.declarations import Declaration
from normlens.anatomy.description import Anatomy, FeedForward, Gate, LayerEnd, Site, TensorRef
from normlens.anatomy.feed_forward_reading import read_feed_forward
from normlens.anatomy.graph import Graph
from normlens.anatomy.joining import Joined, follow_to_sum, post_norm
from normlens.anatomy.kinds import is_cross
from normlens.anatomy.layer_end import follow_to_end
from normlens.anatomy.numbering import SiteName, kinds_of, layer_numbers, site_names, too_short
from normlens.anatomy.output_projection import Projection, find_projection
from normlens.anatomy.pieces import merge_split_attention
from normlens.anatomy.trace import Trace
from normlens.anatomy.values import find_values
from normlens.decompose.steps import Step
from normlens.errors import AnatomyError


def read_anatomy(family: str, trace: Trace, declared: Declaration = Declaration()) -> Anatomy:  # noqa: B008
    """The sites of a traced model; raises `AnatomyError` that says what was looked for and where reading stopped."""
    for path, shape in trace.lost:
        if len(shape) >= 4 and shape[-1] < 2:  # a product with one key need not be one of matrices
            raise too_short(path)
        if len(shape) >= 4 or _over_positions(trace, shape):
            raise AnatomyError(
                f"{family!r} has attention at {path} that is not over all keys at once: a softmax of shape "
                f"{shape} never met values as a whole (windows, blocks or hashes of keys, or no attention at "
                "all); see docs/adding_a_family.md"
            )
    if not trace.attentions:
        raise AnatomyError(
            f"{family!r} has no attention: no softmax met values, neither through transformers' attention "
            "interface nor in the model's own code; see docs/adding_a_family.md"
        )
    if trace.products != len(trace.attentions):
        raise AnatomyError(
            f"{family!r} made {trace.products} products of weights and values, {len(trace.attentions)} were "
            "captured; see docs/adding_a_family.md"
        )
    trace = replace(trace, attentions=merge_split_attention(trace))
    branches = [_branch(Graph(family, trace, event), declared) for event in trace.attentions]
    names = site_names(trace, kinds_of(trace, [branch.joined.residual for branch in branches]))
    layers = layer_numbers(trace, [name.kind for name in names])
    return Anatomy(family, tuple(_site(*found) for found in zip(branches, names, layers, strict=True)))


@dataclass(frozen=True)
class _Branch:
    """One attention, its output projection, and how it joins the residual stream."""

    graph: Graph
    projection: Projection
    joined: Joined


def _branch(graph: Graph, declared: Declaration) -> _Branch:
    projection = find_projection(graph)
    given = projection.linear.given
    joined = Joined((), (), None, (), given) if declared.joins_nothing else follow_to_sum(graph, given)
    return _Branch(graph, projection, joined)


def _over_positions(trace: Trace, shape: tuple[int, ...]) -> bool:
    """Return True if a softmax of three axes is over positions (attention with heads in the batch) and not over experts."""
    lengths = {
        value.shape[1] for _, value in ((p, trace.tensors[v]) for p, v in trace.calls[0].inputs) if value.ndim >= 2
    }
    return shape[-1] in lengths and shape[-2] in lengths


def _site(branch: _Branch, name: SiteName, layer: int) -> Site:
    graph, projection, joined = branch.graph, branch.projection, branch.joined
    event, given = graph.event, projection.linear.given
    norm = post_norm(graph, joined.total, graph.trace.tensors[given].shape[-1])
    weights = None
    if joined.stream_weights is not None:
        if norm is not None or is_cross(name.kind):
            raise graph.stopped(
                "a block that writes into several residual streams must be self-attention with nothing after the sum",
                f"it is {name.kind}" if norm is None else "a normalization follows",
            )
        weights = graph.visible(joined.stream_weights, "the weights of the residual streams")
        weights = graph.copy_at_boundary(weights, joined.stream_weights, onwards=False)
    x, value_map = find_values(graph)
    projected = graph.copy_at_boundary(projection.linear.output, given, onwards=True)
    total = graph.visible(joined.total, "the residual sum")
    if joined.residual is None:
        total = graph.copy_at_boundary(total, joined.total, onwards=True)
    if total.sequence_first:  # then so are the rows of products in the middle of the code, where no axis shows it
        projected, x = (replace(p, sequence_first=True) if p.operation is not None else p for p in (projected, x))
    return Site(
        kind=name.kind,
        of_text=name.of_text,
        layer=layer,
        attention=event.module,
        path=event.path,
        heads=event.alpha.shape[1],
        kv_heads=event.values.shape[1],
        value_width=event.values.shape[-1],
        standard=event.standard,
        inner=projection.steps,
        projection=projection.linear.map,
        groups=projection.groups,
        rows=projection.rows,
        projected=projected,
        branch=joined.steps,
        residual=None if joined.residual is None else graph.visible(joined.residual, "the residual input"),
        residual_steps=joined.residual_steps,
        others=tuple(graph.visible(other, "a branch beside attention") for other in joined.others),
        total=total,
        norm=None if norm is None else norm[1],
        normalized=None if norm is None else graph.visible(norm[0].outputs[0][1], "the normalized sum"),
        x=x,
        value_map=value_map,
        stream_weights=weights,
        gated=any(isinstance(step, Gate) and step.by_coordinate for step in projection.steps),
        calls=event.calls,
        followed=event.followed,
        end=_end(graph, joined, total, joined.total if norm is None else norm[0].outputs[0][1]),
    )


def _end(graph: Graph, joined: Joined, total: TensorRef, stream: int) -> LayerEnd | str:
    """The end of the layer; a sentence where that cannot be read, since only some measures look so far."""
    if joined.stream_weights is not None:
        return f"the layer around {graph.event.path} has several residual streams, which are followed to the first sum alone"
    try:
        if joined.others:  # the feed-forward block stands beside attention
            return LayerEnd(total, None, None, _beside(graph, joined))
        ended = follow_to_end(graph, stream)
        return LayerEnd(
            graph.visible(ended.total, "the last residual sum"),
            None if ended.norm is None else ended.norm[1],
            None if ended.norm is None else graph.visible(ended.norm[0].outputs[0][1], "the normalized sum"),
            _feed_forward(graph, stream, ended.branch, ended.stream_steps),
        )
    except AnatomyError as error:
        return str(error)


def _beside(graph: Graph, joined: Joined) -> FeedForward | str:
    if len(joined.others) != 1 or joined.residual is None:
        return (
            f"{len(joined.others)} branches stand beside attention in {graph.family!r} at {graph.event.path}, not one"
        )
    return _feed_forward(graph, joined.residual, joined.others[0], (), parallel=True)


def _feed_forward(
    graph: Graph, stream: int, branch: int, steps: tuple[Step, ...], *, parallel: bool = False
) -> FeedForward | str:
    try:
        return read_feed_forward(graph, stream, branch, steps, parallel=parallel)
    except AnatomyError as error:
        return str(error)
