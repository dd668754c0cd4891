"""What is set for the whole process leaves the user's own settings alone."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from normlens.decompose import process


def test_starting_numba_leaves_pytorchs_threads_alone() -> None:
    pytest.importorskip("numba", reason="compiled loops come with the extra 'fast'")
    code = """
import torch
from normlens.decompose.process import compiled_loops
for threads in (1, 2):
    torch.set_num_threads(threads)
    compiled_loops()
    assert torch.get_num_threads() == threads, torch.get_num_threads()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_short_sequences_and_other_dtypes_stay_with_pytorch() -> None:
    assert not process.fits_compiled(torch.zeros(1, dtype=torch.bfloat16))
    assert process.COMPILED_LENGTH > 32, "nobody should wait for a compiler who asks about a sentence"


def test_loops_use_as_many_threads_as_pytorch_has_now() -> None:
    numba = pytest.importorskip("numba")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        most = process.follow_threads()
        torch.set_num_threads(1)
        assert process.follow_threads() == numba.get_num_threads() == 1
        torch.set_num_threads(2)
        assert process.follow_threads() == numba.get_num_threads() == most
    finally:
        torch.set_num_threads(before)
        process.follow_threads()
