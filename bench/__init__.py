"""Elman against its peers, as ratios in one run.

ELMAN_ISA=avx2 holds our kernels to AVX2, and here the peers too, so that a machine that has AVX-512 compares like with
like. What was seen to hold: Torch's own kernels (`torch.backends.cpu.get_cpu_capability`) and oneDNN (ONEDNN_VERBOSE
names its kernels); code that JAX generates (no AVX-512 in the objects that it dumps); numpy. MKL is asked to; on an AMD
processor its products are as fast without, which is the speed of AVX2. Free all the same are ONNX Runtime, which has no
such switch, and the products of JAX, by YNNPACK, which has none either: `free` names them. hmmlearn's loops are
compiled for any x86-64.
"""

import os

HELD = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
}
HOLDING = os.environ.get("ELMAN_ISA") == "avx2"
if HOLDING:  # before any of them is imported, here and in the processes that this one starts
    os.environ.update(HELD)


def free(peer: str) -> bool:
    """Whether a peer may use AVX-512 where we may not. JAX's linear scans have no products."""
    return HOLDING and (peer in ("jax", "dynamax") or "onnxruntime" in peer)
