"""Is a family analysed exactly? Six checks on a tiny random-weight model, with and without padding.

1. *Output*: the model computes the same under capture as with its own eager attention.
2. *All of it*: every product of attention weights and values in the model is a captured site.
3. *Projection*: the output projection is found without ambiguity for every site.
4. *Parts*: parts, residual and normalization rebuild what the model computed, below 1e-4.
5. *Heads*: the same numbers with the heads in a wrong order do not rebuild it, so the fourth check can fail.
6. *Weights*: `alpha` equals the attentions that the model itself shows, where it shows them.

Beside that, whether its numbers can be explained: terms that add up, with the whole proof of an explanation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from normlens.anatomy.description import Anatomy, Gate
from normlens.anatomy.examine import backbone, few_tokens
from normlens.anatomy.interface import run_arguments
from normlens.anatomy.scope import PassScope
from normlens.anatomy.trace import Recorder
from normlens.attribution.questions import first_tensor, flat_output, head_of
from normlens.decompose.block import Block
from normlens.decompose.steps import Normalization, Scaling
from normlens.errors import AnatomyError, DecompositionError, NormlensError
from normlens.families.media import media_families, media_inputs, tiny_media_model
from normlens.families.tiny import families, tiny_inputs, tiny_model
from normlens.lens import Lens
from normlens.measures.proof import TOLERANCE, Subject, prove_sums
from normlens.measures.request import Request
from normlens.measures.run import SiteResult
from normlens.types import Json


@dataclass(frozen=True)
class FamilyReport:
    """The report on one family."""

    family: str
    mapping: str
    status: str  # exact | refused; of types that see or hear also: no attention | not built
    reason: str  # why it is refused; empty where it is exact
    proof: float | None  # the largest relative error of rebuilt vectors
    output: float | None  # the largest relative difference of the model's output under capture
    alpha: float | None  # the largest difference of `alpha` from the attentions that the model shows, where it does
    sites: dict[str, int]
    norm: str  # where the normalization stands: post, pre, branch
    heads: str
    kv_heads: str
    notes: str
    explained: str = ""  # complete | refused
    explained_reason: str = ""  # why it is refused
    explained_gap: float | None = None  # the largest gap over the sum of absolute terms

    def to_dict(self) -> Json:
        """Everything as plain JSON values."""
        return asdict(self)


def check_family(family: str) -> FamilyReport:
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
    return replace(_analyzed(family, mapping, model), **_explained(model))


def check_media_family(family: str) -> FamilyReport:
    """Check one family that sees or hears: by the proofs of its analysis and of its explanation, on one row."""
    mapping = media_families()[family]
    try:
        model = tiny_media_model(family)
        inputs = media_inputs(model)
        with torch.no_grad():
            model(**inputs)
    except Exception as error:
        return _refused(
            family, mapping, f"no tiny model that runs could be built: {_sentence(error)}", status="not built"
        )
    lens = Lens(model)
    try:
        analysis = lens.analyze_inputs(inputs)[0]
    except NormlensError as error:
        status = "no attention" if "has no attention" in str(error) else "refused"
        report = _refused(family, mapping, str(error), status=status)
    except Exception as error:
        report = _refused(family, mapping, f"the check itself failed: {_sentence(error)}")
    else:
        sites = lens.traced.anatomy_for(inputs).sites
        report = FamilyReport(
            family,
            mapping,
            "exact",
            "",
            proof=analysis.max_proof_error,
            output=lens.max_output_error,
            alpha=None,
            sites={kind: dataset.sizes["layer"] for kind, dataset in analysis.sites.items()},
            norm=_distinct(site.placement for site in sites),
            heads=_distinct(site.heads for site in sites),
            kv_heads=_distinct(site.kv_heads for site in sites),
            notes="",
        )
    return replace(report, **_media_explained(lens, inputs))


def _media_explained(lens: Lens, inputs: Mapping[str, Tensor]) -> Json:
    """Explain one number of what a model that sees or hears puts out."""
    question: Json = {"output": 1}
    head = head_of(lens.model)
    try:
        if head == "similarity":
            question = {}
        elif head == "none":
            with torch.no_grad():
                width = flat_output(first_tensor(lens.model(**inputs))).shape[-1]
            question = {"direction": torch.ones(width), "position": 0}
        elif head in ("frames", "queries", "token"):
            question |= {"position": 0}
        found = lens.explain_inputs(inputs, **question)[0]
    except NormlensError as error:
        return {"explained": "refused", "explained_reason": str(error)}
    except Exception as error:
        return {"explained": "refused", "explained_reason": f"the check itself failed: {_sentence(error)}"}
    return {"explained": "complete", "explained_reason": "", "explained_gap": found.proof.gap}


def _analyzed(family: str, mapping: str, model: nn.Module) -> FamilyReport:
    try:
        return examine_model(family, mapping, model)
    except NormlensError as error:
        return _refused(family, mapping, str(error))
    except Exception as error:  # the table must name every family, also one that breaks in a way nobody foresaw
        return _refused(family, mapping, f"the check itself failed: {_sentence(error)}")


def _explained(model: nn.Module) -> Json:
    """Return True if one number of the model's output can be explained, with and without padding."""
    lens = Lens(model)
    try:
        gaps = [
            found.proof.gap
            for padded in (False, True)
            for found in lens.explain_inputs(tiny_inputs(model, padded=padded), output=17, position=2)
        ]
    except NormlensError as error:
        return {"explained": "refused", "explained_reason": str(error)}
    except Exception as error:
        return {"explained": "refused", "explained_reason": f"the check itself failed: {_sentence(error)}"}
    return {"explained": "complete", "explained_reason": "", "explained_gap": max(gaps)}


def _plain_run(model: nn.Module, padded: bool) -> None:
    body = backbone(model)
    body(**run_arguments(body, tiny_inputs(model, padded=padded)))


def examine_model(family: str, mapping: str, model: nn.Module) -> FamilyReport:
    """The six checks; a failed one raises."""
    lens = Lens(model)
    check_all_captured(lens)
    errors: list[float] = []
    differences: list[float | None] = []
    for padded in (False, True):
        settings = Request.of(lens.anatomy)
        alphas: list[tuple[SiteResult, Tensor]] = []

        def take(result: SiteResult, block: Block, alphas: list[tuple[SiteResult, Tensor]] = alphas) -> None:
            errors.append(float(result.proof.max()))
            check_heads(family, result, block)
            alphas.append((result, result.values["alpha"].clone()))

        inputs = tiny_inputs(model, padded=padded)
        lens.run(inputs, settings, take)
        differences.append(alpha_difference(alphas, shown_attentions(backbone(model), inputs)))
    known = [difference for difference in differences if difference is not None]
    if max(known, default=0.0) > TOLERANCE[torch.float32]:
        raise DecompositionError(
            f"alpha of {family!r} differs by {max(known):.2g} from the attention weights that the model returns "
            f"(allowed: {TOLERANCE[torch.float32]:.0e})"
        )
    anatomy = lens.anatomy
    return FamilyReport(
        family,
        mapping,
        "exact",
        "",
        proof=max(errors),
        output=lens.max_output_error,
        alpha=max(known) if len(known) == len(differences) else None,
        sites={kind: len(anatomy.of(kind)) for kind in anatomy.kinds},
        norm=_distinct(site.placement for site in anatomy.sites),
        heads=_distinct(site.heads for site in anatomy.sites),
        kv_heads=_distinct(site.kv_heads for site in anatomy.sites),
        notes=_notes(anatomy, model),
    )


#: Fields of a model's output that hold attention weights, by kind of site; `attentions` are those of its only kind.
_SHOWN = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}


def shown_attentions(body: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, list[Tensor]]:
    """The attention weights that the model itself shows, by field; nothing where it does not know the question."""
    try:
        with PassScope(body):
            output = body(**run_arguments(body, inputs), output_attentions=True)
    except Exception:  # every family fails in its own way at an argument that it does not have
        return {}
    found = {}
    for name in ("attentions", *_SHOWN.values()):
        tensors = [t for t in getattr(output, name, None) or () if isinstance(t, Tensor) and t.ndim == 4]
        if tensors:
            found[name] = tensors
    return found


def alpha_difference(sites: Sequence[tuple[SiteResult, Tensor]], shown: Mapping[str, list[Tensor]]) -> float | None:
    """The distance of `alpha` from the model's own attentions, over real positions; None where some are not shown."""
    differences = []
    for kind in {result.kind for result, _ in sites}:
        ours = [(result, alpha) for result, alpha in sites if result.kind == kind]
        alone = len(ours) == len(sites)
        theirs = shown.get(_SHOWN[kind]) or (shown.get("attentions", []) if alone else [])
        if len(theirs) != len(ours):
            return None
        for (result, alpha), weights in zip(ours, theirs, strict=True):
            if weights.shape[:3] != alpha.shape[:3] or weights.shape[3] < alpha.shape[3]:
                return None
            gap = (alpha - weights[..., : alpha.shape[3]]).abs()  # a sink's column stands last
            real = result.query_mask[:, None, :, None] & result.key_mask[:, None, None, :]
            differences.append(float(gap.masked_fill(~real, 0.0).max()))
    return max(differences)


def check_all_captured(lens: Lens) -> None:
    """As many sites as there are products of attention weights and values under the model's own eager attention."""
    body = backbone(lens.model)
    recorder = Recorder(body)
    with PassScope(body) as scope:
        recorder.watch(scope)
        body(**run_arguments(body, few_tokens(body)))
    captured = sum(site.calls for site in lens.anatomy.sites)
    if recorder.trace.products != captured:
        raise AnatomyError(
            f"{lens.family!r} makes {recorder.trace.products} products of weights and values with its eager "
            f"attention, {captured} are captured; see docs/adding_a_family.md"
        )


def check_heads(family: str, result: SiteResult, block: Block) -> None:
    """With the heads rotated by one, the sum must not come out right."""
    if block.w_o.shape[0] < 2:
        return  # one head has no order
    where = f"{result.kind} layer {result.layer}"
    subject = Subject(family, where, "attention", torch.float32)
    try:
        prove_sums(with_rotated_heads(block), result.query_mask, subject)
    except DecompositionError:
        return
    raise DecompositionError(
        f"rotated heads of {family!r}, {where}, gave right sums, so the proof would not notice a wrong head order "
        f"(allowed error: {TOLERANCE[torch.float32]:.0e})"
    )


def with_rotated_heads(block: Block) -> Block:
    """The same site with its output projection's heads in a wrong order."""
    return replace(block, w_o=block.w_o.roll(1, dims=0), output_check=None)


def _notes(anatomy: Anatomy, model: nn.Module) -> str:
    sites = anatomy.sites
    inner = [step for site in sites for step in site.inner]
    found = {
        "gate": any(site.gated for site in sites),
        "scaled by query and head": any(isinstance(step, Gate) and not step.by_coordinate for step in inner),
        "norm before the projection": any(isinstance(step, Normalization) for step in inner),
        "constant on the branch": any(isinstance(step, Scaling) for site in sites for step in site.branch),
        "constant on the residual": any(site.residual_steps for site in sites),
        "differential heads": any(site.groups for site in sites),
        "several residual streams": any(site.stream_weights is not None for site in sites),
        "parallel branch": any(site.others for site in sites),
        "no residual": any(site.residual is None for site in sites),
        "own code": any(site.followed for site in sites),
        "text only": any(name in vars(model.config) for name in ("vision_config", "audio_config")),
    }
    return ", ".join(name for name, holds in found.items() if holds)


def _distinct(items: Any) -> str:
    return ", ".join(dict.fromkeys(str(item) for item in items))


def _sentence(error: Exception) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {' '.join(lines)}"[:300]


def _refused(family: str, mapping: str, reason: str, *, status: str = "refused") -> FamilyReport:
    return FamilyReport(family, mapping, status, reason, None, None, None, {}, "", "", "", "", "refused", reason)
