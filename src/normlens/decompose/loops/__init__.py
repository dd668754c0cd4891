"""Loops that numba compiles. This package is imported when one of them is to run (`decompose.process`), not before."""

from normlens.decompose.loops.gram_matrices import grams as grams
from normlens.decompose.loops.quadratic import quadratic as quadratic
from normlens.decompose.loops.vectors import per_query as per_query
