"""A site's weights, made ready for the mathematics once and again only when they change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from normlens.anatomy.description import Norm, Scale, Site
from normlens.anatomy.description import Step as AnatomyStep
from normlens.decompose.block import projections_of
from normlens.decompose.heads import Projection, split_heads
from normlens.decompose.pairs import PlaceName
from normlens.decompose.steps import Normalizing, Scaling, Step


@dataclass(frozen=True)
class Prepared:
    """The weights of one site in the working dtype."""

    projections: dict[PlaceName, Projection]
    bias: Tensor | None
    branch: tuple[Step, ...]
    norm: Step | None


class WeightCache:
    """Prepared weights, keyed by the parameters and their versions: a model trained further is prepared anew."""

    def __init__(self) -> None:
        # By projection module and not by layer: a module that runs twelve times is prepared once.
        self._kept: WeakKeyDictionary[nn.Module, tuple[object, Prepared]] = WeakKeyDictionary()

    def prepare(self, site: Site, dtype: torch.dtype) -> Prepared:
        """The site's weights, from the cache where nothing changed."""
        key = (dtype, site.heads, _steps_key(site), _versions(site.projection.module.parameters()))
        kept = self._kept.get(site.projection.module)
        if kept is not None and kept[0] == key:
            return kept[1]
        prepared = _prepare(site, dtype)
        self._kept[site.projection.module] = (key, prepared)
        return prepared


def _steps_key(site: Site) -> tuple[object, ...]:
    steps = site.branch if site.norm is None else (*site.branch, site.norm)
    key: list[object] = []
    for step in steps:
        if isinstance(step, Norm):
            key.append(
                (step.centred, step.offset, step.eps, _versions(t for t in (step.weight, step.bias) if t is not None))
            )
        else:
            key.append(step.factor if isinstance(step.factor, float) else _versions([step.factor]))
    return tuple(key)


def _versions(tensors: Iterable[Tensor]) -> tuple[object, ...]:
    return tuple((id(tensor), tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version) for tensor in tensors)


def _prepare(site: Site, dtype: torch.dtype) -> Prepared:
    weight = split_heads(site.projection.matrix().to(dtype), site.heads).contiguous()
    bias = site.projection.bias()
    branch = tuple(_step(step, dtype) for step in site.branch)
    norm = None if site.norm is None else _step(site.norm, dtype)
    return Prepared(projections_of(weight, branch, norm), None if bias is None else bias.to(dtype), branch, norm)


def _step(step: AnatomyStep, dtype: torch.dtype) -> Step:
    if isinstance(step, Scale):
        return Scaling(step.factor if isinstance(step.factor, float) else step.factor.to(dtype))
    gamma, beta = step.gamma(), step.beta()
    return Normalizing(
        gamma=None if gamma is None else gamma.to(dtype),
        beta=None if beta is None else beta.to(dtype),
        centred=step.centred,
        eps=step.eps,
    )
