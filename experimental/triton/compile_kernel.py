"""Compile the Triton kernel to machine code of a card that need not be here.

python -m experimental.triton.compile_kernel 80 [heads width]     # compute capability: 80 is an A100, 90 an H100
"""

from __future__ import annotations

import sys


def main(capability: int, heads: int = 4, width: int = 16) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from experimental.triton import quadratic_kernel

    function = quadratic_kernel._pair_norms
    padded = quadratic_kernel.padded_heads(heads)
    fixed = {"heads": heads, "width": width, "stages": 1, "padded": padded, "tile": quadratic_kernel.TILE}
    fixed |= {"causal": True, "masked": True, "with_mean": True}
    kinds = dict.fromkeys(function.arg_names, "i32") | dict.fromkeys(fixed, "constexpr")
    kinds |= dict.fromkeys(("query", "key", "mask"), "*bf16") | {"lost": "*i32"}
    kinds |= dict.fromkeys(("log_sum", "matrices", "lengths", "out", "mean"), "*fp32")
    kinds |= dict.fromkeys(("scaling", "cancellation"), "fp32")
    source = ASTSource(function, kinds, constexprs=fixed)
    options = {"num_warps": quadratic_kernel.warps(padded)}
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    print(f"{len(made.asm['cubin'])} bytes of machine code, {made.metadata.shared} bytes of shared memory a program")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
