"""Pictures: one function for each kind, labelled arrays in, matplotlib figures out.

`plot_maps` (the five maps over the layers), `plot_map` (one large map), `plot_mixing` (mixing ratio by layer and
token), `plot_heads` (every head as a thumbnail), `plot_explanation` (what made one number), and
`save_figure` (PNG and SVG). Nothing here shows a window, keeps a figure alive or depends on the caller's matplotlib
settings, except that fonts named there serve scripts which matplotlib's own font lacks.
"""

from __future__ import annotations

from normlens.plots.explanation_figure import plot_explanation
from normlens.plots.head_maps import plot_heads
from normlens.plots.maps import plot_map, plot_maps
from normlens.plots.mixing import plot_mixing
from normlens.plots.sheet import save_figure

__all__ = ["plot_explanation", "plot_heads", "plot_map", "plot_maps", "plot_mixing", "save_figure"]
