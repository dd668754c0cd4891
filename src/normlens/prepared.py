"""A site's weights, made ready for the mathematics once and again only when they change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from normlens.anatomy.description import Gate, Norm, Scale, Shift, Site, ValueMap
from normlens.anatomy.description import Step as AnatomyStep
from normlens.decompose.block import projections_of
from normlens.decompose.gated import fixed_factor
from normlens.decompose.heads import Projection, split_heads
from normlens.decompose.pairs import PlaceName
from normlens.decompose.sketch import Sketch
from normlens.decompose.steps import Normalizing, Scaling, Shifting, Step


@dataclass(frozen=True)
class Prepared:
    """The weights of one site in the working dtype."""

    projections: dict[PlaceName, Projection]
    bias: Tensor | None
    branch: tuple[Step, ...]
    norm: Step | None
    inner: tuple[Step | None, ...]  # in front of the projection; None where a gate stands, which is no weight
    residual: tuple[Step, ...]  # between the residual and the sum
    output_sketch: Sketch
    value_sketch: Sketch | None


class WeightCache:
    """Prepared weights, keyed by the parameters and their versions: a model trained further is prepared anew."""

    def __init__(self) -> None:
        # By projection module and not by layer: a module that runs twelve times is prepared once.
        self._kept: WeakKeyDictionary[nn.Module, tuple[object, Prepared]] = WeakKeyDictionary()

    def prepare(self, site: Site, dtype: torch.dtype) -> Prepared:
        """The site's weights, from the cache where nothing changed."""
        rows = None if site.rows is None else tuple(site.rows.tolist())
        values = () if site.value_map is None else _versions(site.value_map.linear.parameters())
        key = (dtype, site.heads, rows, _steps_key(site), _versions(site.projection.parameters()), values)
        kept = self._kept.get(site.projection.module)
        if kept is not None and kept[0] == key:
            return kept[1]
        prepared = _prepare(site, dtype)
        self._kept[site.projection.module] = (key, prepared)
        return prepared


def _steps_key(site: Site) -> tuple[object, ...]:
    key: list[object] = []
    for step in (*site.inner, "branch", *site.branch, "residual", *site.residual_steps, "norm", site.norm):
        if step is None or isinstance(step, str | Gate):
            key.append(str(type(step)))
        elif isinstance(step, Shift):
            key.append(_versions([step.vector]))
        elif isinstance(step, Norm):
            key.append(
                (step.centred, step.offset, step.eps, _versions(t for t in (step.weight, step.bias) if t is not None))
            )
        else:
            key.append(step.factor if isinstance(step.factor, float) else _versions([step.factor]))
    return tuple(key)


def _versions(tensors: Iterable[Tensor]) -> tuple[object, ...]:
    return tuple((id(tensor), tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version) for tensor in tensors)


def _prepare(site: Site, dtype: torch.dtype) -> Prepared:
    matrix = site.projection.matrix().to(dtype)
    if site.rows is not None:
        matrix = matrix[site.rows.to(matrix.device)]
    weight = split_heads(matrix, site.heads).contiguous()
    inner = tuple(None if isinstance(step, Gate) else _step(step, dtype) for step in site.inner)
    if inner:
        weight = weight * fixed_factor(inner, weight.shape[0], weight.shape[1], weight).unsqueeze(-1)
    found = site.projection.bias()
    bias = None if found is None else found.to(dtype)
    branch = tuple(_step(step, dtype) for step in site.branch)
    norm = None if site.norm is None else _step(site.norm, dtype)
    return Prepared(
        projections_of(weight, branch, norm),
        bias,
        branch,
        norm,
        inner,
        tuple(_step(step, dtype) for step in site.residual_steps),
        Sketch.of(weight.flatten(0, 1), bias),
        None if site.value_map is None else _value_sketch(site.value_map, dtype),
    )


def _value_sketch(found: ValueMap, dtype: torch.dtype) -> Sketch:
    matrix, bias = found.linear.matrix().to(dtype), found.linear.bias()
    columns = found.columns.to(matrix.device).flatten()
    return Sketch.of(matrix[:, columns], None if bias is None else bias[columns])


def _step(step: AnatomyStep, dtype: torch.dtype) -> Step:
    if isinstance(step, Scale):
        return Scaling(step.factor if isinstance(step.factor, float) else step.factor.to(dtype))
    if isinstance(step, Shift):
        return Shifting(step.vector.to(dtype))
    gamma, beta = step.gamma(), step.beta()
    return Normalizing(
        gamma=None if gamma is None else gamma.to(dtype),
        beta=None if beta is None else beta.to(dtype),
        centred=step.centred,
        eps=step.eps,
    )
