"""Is a family analysed exactly? Five checks on a tiny random-weight model, with and without padding.

1. *Output*: the model computes the same under capture as with its own eager attention.
2. *All of it*: every product of attention weights and values in the model is a captured site.
3. *Projection*: the output projection is found without ambiguity for every site.
4. *Parts*: parts, residual and normalization rebuild what the model computed, below 1e-4.
5. *Heads*: the same numbers with the heads in a wrong order do not rebuild it, so the fourth check can fail.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from normlens.anatomy.description import Anatomy, Gate, Norm, Scale, Site
from normlens.anatomy.examine import backbone, few_tokens, run_arguments
from normlens.anatomy.interface import evaluating
from normlens.anatomy.trace import Recorder
from normlens.decompose.block import Block, BlockTensors
from normlens.decompose.heads import Projection
from normlens.errors import AnatomyError, DecompositionError, NormlensError
from normlens.families.tiny import families, tiny_inputs, tiny_model
from normlens.lens import Lens
from normlens.observe import SiteResult
from normlens.proof import TOLERANCE, Subject, prove_sums
from normlens.settings import Settings


@dataclass(frozen=True)
class Report:
    """What was found out about one family."""

    family: str
    mapping: str
    status: str  # exact | refused
    reason: str  # why it is refused; empty where it is exact
    proof: float | None  # the largest relative error of rebuilt vectors
    output: float | None  # the largest relative difference of the model's output under capture
    sites: dict[str, int]
    norm: str  # where the normalization stands: post, pre, branch
    heads: str
    kv_heads: str
    notes: str

    def as_dict(self) -> dict[str, Any]:
        """A plain object for JSON."""
        return asdict(self)


def survey(family: str) -> Report:
    """Check one family; whatever goes wrong is its reason for refusal."""
    mapping = families()[family]
    try:
        model = tiny_model(family)
    except Exception as error:
        return _refused(family, mapping, f"no tiny model could be built: {_sentence(error)}")
    try:
        for padded in (False, True):
            with torch.no_grad():
                _plain_run(model, padded)
    except Exception as error:
        return _refused(family, mapping, f"a tiny model does not run on token ids alone: {_sentence(error)}")
    try:
        return examine_model(family, mapping, model)
    except NormlensError as error:
        return _refused(family, mapping, str(error))
    except Exception as error:  # the table must name every family, also one that breaks in a way nobody foresaw
        return _refused(family, mapping, f"the check itself failed: {_sentence(error)}")


def _plain_run(model: nn.Module, padded: bool) -> None:
    body = backbone(model)
    body(**run_arguments(body, tiny_inputs(model, padded=padded)))


def examine_model(family: str, mapping: str, model: nn.Module) -> Report:
    """The five checks; a failed one raises."""
    lens = Lens(model)
    check_all_captured(lens)
    errors: list[float] = []
    for padded in (False, True):
        settings = Settings.of(lens.anatomy)

        def handle(site: Site, block: Block, result: SiteResult) -> None:
            errors.append(float(result.proof.max()))
            check_heads(family, site, block, result)

        lens.run(tiny_inputs(model, padded=padded), settings, handle)
    anatomy = lens.anatomy
    return Report(
        family,
        mapping,
        "exact",
        "",
        proof=max(errors),
        output=max(lens._verified.values()),
        sites={kind: len(anatomy.of(kind)) for kind in anatomy.kinds},
        norm=_several(site.placement for site in anatomy.sites),
        heads=_several(site.heads for site in anatomy.sites),
        kv_heads=_several(site.kv_heads for site in anatomy.sites),
        notes=_notes(anatomy, model),
    )


def check_all_captured(lens: Lens) -> None:
    """As many sites as there are products of attention weights and values under the model's own eager attention."""
    body = backbone(lens.model)
    recorder = Recorder(body)
    with evaluating(body), recorder.watching():
        body(**run_arguments(body, few_tokens(body)))
    if recorder.trace.products != len(lens.anatomy.sites):
        raise AnatomyError(
            f"every attention must be captured: {lens.family!r} makes {recorder.trace.products} products of weights "
            f"and values with its eager attention, {len(lens.anatomy.sites)} are captured; see docs/adding_a_family.md"
        )


def check_heads(family: str, site: Site, block: Block, result: SiteResult) -> None:
    """With the heads of the values turned by one, the sum must not come out right."""
    t = block.tensors
    if t.heads < 2:
        return  # one head has no order
    wrong = Block(with_turned_heads(t))
    subject = Subject(family, f"{site.kind} layer {site.layer}", site.path, torch.float32)
    try:
        prove_sums(wrong, result.query_mask, subject)
    except DecompositionError:
        return
    raise DecompositionError(
        f"a wrong head order must be caught: in {family!r}, {site}, the sums came out right with turned heads; "
        f"its attention says too little for a proof (allowed error: {TOLERANCE[torch.float32]:.0e})"
    )


def with_turned_heads(tensors: BlockTensors) -> BlockTensors:
    """The same site with its output projection's heads in a wrong order."""
    turned = {place: Projection(projection.weight.roll(1, dims=0)) for place, projection in tensors.projections.items()}
    return replace(tensors, projections=turned)


def _notes(anatomy: Anatomy, model: nn.Module) -> str:
    sites = anatomy.sites
    inner = [step for site in sites for step in site.inner]
    found = {
        "gate": any(site.gated for site in sites),
        "scaled by query and head": any(isinstance(step, Gate) and not step.by_coordinate for step in inner),
        "norm before the projection": any(isinstance(step, Norm) for step in inner),
        "constant on the branch": any(isinstance(step, Scale) for site in sites for step in site.branch),
        "constant on the residual": any(site.residual_steps for site in sites),
        "parallel branch": any(site.others for site in sites),
        "no residual": any(site.residual is None for site in sites),
        "own code": any(site.followed for site in sites),
        "text only": any(name in vars(model.config) for name in ("vision_config", "audio_config")),
    }
    return ", ".join(name for name, holds in found.items() if holds)


def _several(items: Any) -> str:
    return ", ".join(dict.fromkeys(str(item) for item in items))


def _sentence(error: Exception) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {' '.join(lines)}"[:300]


def _refused(family: str, mapping: str, reason: str) -> Report:
    return Report(family, mapping, "refused", reason, None, None, {}, "", "", "", "")
