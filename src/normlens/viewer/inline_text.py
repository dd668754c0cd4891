"""Results as plain HTML: what a notebook shows for them without any script."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from normlens.measures.table import MIXING
from normlens.viewer.explanation_page import SIDES, output_names, side_tokens
from normlens.viewer.page_data import utf8

if TYPE_CHECKING:
    from normlens.results.analysis import Analysis
    from normlens.results.explanation import Explanation

#: A notebook is no place for more; the viewer has them all.
MOST_TOKENS = 2000

#: Red, green and blue of what raises and what lowers: a pair that all common kinds of colour vision keep apart. They lie
#: over the notebook's own ground, so that zero is neutral in light and dark.
_ABOVE, _BELOW = "0,114,178", "213,94,0"
_CHIP = "padding:1px 3px;border-radius:3px;margin-right:1px"


def inline_html(explanation: Explanation) -> str:
    """The text coloured by signed terms, with the number and its proof; steps are added, which is exact."""
    names, against = output_names(explanation)
    output = " · ".join(names)
    value = float(np.sum(np.asarray(explanation.value)))
    above, below = (
        (f"for {output}", f"for {against}") if against is not None else (f"raises {output}", f"lowers {output}")
    )
    sides = {kind: terms["tokens"] for kind, terms in explanation.sites.items() if "tokens" in terms}
    added = {kind: array.sum("step") if "step" in array.dims else array for kind, array in sides.items()}
    top = max((float(np.abs(array.values).max(initial=0.0)) for array in added.values()), default=0.0)
    head = f"<b>{_safe(output)}</b>" + (f" rather than <b>{_safe(against)}</b>" if against is not None else "")
    facts = [f"{'difference of the logits' if against is not None else 'number'} {_signed(value)}"]
    chance = explanation.probability
    if chance is not None and all(one is not None for one in np.atleast_1d(chance)):
        likely = float(np.prod(np.atleast_1d(chance).astype(float)))
        facts.append(f"probability {likely:.1%}" if likely >= 0.001 else f"probability {likely:.1e}")
    facts.append(f"gap {explanation.proof.gap:.0e}")
    if len(names) > 1:
        facts.append(f"{len(names)} steps added; show() has each")
    rows = [f"<div>{head}: {'; '.join(facts)}</div>"]
    for kind, array in added.items():
        label = f'<span style="opacity:.7">{SIDES.get(kind, kind)}: </span>' if len(added) > 1 else ""
        rows.append(f'<div style="line-height:2" dir="auto">{label}{_coloured(array, top)}</div>')
    key = (
        f'<span style="{_ground(1.0)};{_CHIP}">{_safe(above)}</span> '
        f'<span style="{_ground(-1.0)};{_CHIP}">{_safe(below)}</span>'
    )
    rows.append(f'<div style="font-size:smaller">{key} · strongest {_signed(top).lstrip("+")}</div>')
    if explanation.warning:
        rows.append(f'<div style="font-size:smaller"><b>Note:</b> {_safe(explanation.warning)}</div>')
    return f'<div class="normlens-explanation" style="max-width:70em">{"".join(rows)}</div>'


def analysis_html(analysis: Analysis) -> str:
    """Return the tokens of an analysis, and its mixing ratios by layer, averaged over the tokens."""
    rows = []
    for kind, dataset in analysis.sites.items():
        tokens = " ".join(analysis.site(kind).key_tokens[:MOST_TOKENS])
        sizes = ", ".join(f"{size} {axis}" for axis, size in dataset.sizes.items())
        rows.append(
            f'<div><b>{_safe(kind)}</b> ({_safe(sizes)}): <span style="opacity:.7">{_safe(tokens)}</span></div>'
        )
        ratios = [str(name) for name in dataset.data_vars if str(name).startswith(MIXING)]
        if ratios:
            layers = "".join(f"<th>{layer}</th>" for layer in dataset["layer"].values)
            lines = [f"<tr><th>mixing ratio, mean; layer</th>{layers}</tr>"]
            for name in ratios:
                cells = "".join(f"<td>{value:.0%}</td>" for value in dataset[name].mean("query").values)
                lines.append(f"<tr><th>{_safe(name.removeprefix(MIXING))}</th>{cells}</tr>")
            rows.append(f"<table>{''.join(lines)}</table>")
    rows.append(f'<div style="font-size:smaller">{_safe(analysis.provenance_line())}</div>')
    return f'<div class="normlens-analysis" style="max-width:70em">{"".join(rows)}</div>'


def _coloured(array: xr.DataArray, top: float) -> str:
    values = np.asarray(array.values, dtype=np.float64)
    texts, spaces = side_tokens(array)
    parts = []
    for text, space, value in list(zip(texts, spaces, values, strict=True))[:MOST_TOKENS]:
        ground = _ground(value / top if top > 0 else 0.0)
        parts.append(
            f'{" " if space else ""}<span title="{_signed(value)}" style="{ground};{_CHIP}">{_safe(text)}</span>'
        )
    if len(values) > MOST_TOKENS:
        parts.append(f" … and {len(values) - MOST_TOKENS:,} more tokens: show() has them")
    return "".join(parts)


def _ground(share: float) -> str:
    return f"background:rgba({_BELOW if share < 0 else _ABOVE},{0.75 * min(1.0, abs(share)):.3f})"


def _signed(value: float) -> str:
    return "0" if value == 0 else f"{value:+.3g}".replace("-", "−")


def _safe(text: str) -> str:
    return escape(utf8(text))
