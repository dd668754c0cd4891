"""Figures: one function for each kind, labelled arrays in, matplotlib figures out.

`plot_maps` (maps over the layers), `plot_map` (one large map), `plot_mixing` (mixing ratio by layer and token),
`plot_heads` (every head), `plot_explanation` (the terms of one number), and `save_figure` (PNG and SVG). No function opens
a window, keeps a figure alive or depends on the caller's matplotlib settings, except that fonts named there serve scripts
which matplotlib's own font lacks.
"""

from __future__ import annotations

from normlens.plots.explanation import plot_explanation
from normlens.plots.figure import save_figure
from normlens.plots.maps import plot_heads, plot_map, plot_maps, plot_mixing

__all__ = ["plot_explanation", "plot_heads", "plot_map", "plot_maps", "plot_mixing", "save_figure"]
