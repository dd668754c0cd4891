"""Loops that numba compiles. This package is imported when one of them is to run (`decompose.kernels`), not before."""

from normlens.decompose.loops.grams import grams as grams
from normlens.decompose.loops.quadratic import quadratic as quadratic
from normlens.decompose.loops.vectors import gaps as gaps
from normlens.decompose.loops.vectors import vectors as vectors
