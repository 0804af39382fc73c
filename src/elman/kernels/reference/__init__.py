"""Every kernel in plain Torch: the meaning of the native ones, and what runs where there are none.

`lengths` (B,) and `reset` (B, T) are always tensors here. They act through `where`, on values and on gradients, never
through a product: an infinity before a reset or in the padding would come through a product with zero as NaN.
"""

from elman.kernels.reference.choice import Choice, choose
from elman.kernels.reference.densities import negative_binomial_log_prob, student_t_log_prob
from elman.kernels.reference.elementwise import (
    cos,
    exp,
    json_rows,
    l2_norm,
    layer_norm,
    linear,
    log,
    log_sum_exp,
    reverse,
    rms_norm,
    sigmoid,
    silu,
    sin,
    softplus,
    tanh,
)
from elman.kernels.reference.gathered import Gather, gathered
from elman.kernels.reference.hmm import best_path, hmm_expected, hmm_filter, hmm_log_prob, hmm_posterior
from elman.kernels.reference.loop import AttendedLoop, GatedLoop, GatedOptions, Step, attend, gated, loop
from elman.kernels.reference.matrix import matrix_scan, max_scan
from elman.kernels.reference.random import philox, student_t
from elman.kernels.reference.scan import Context, bank_scan, convolution, linear_scan, selective_scan, trace_step
from elman.kernels.reference.softmax import softmax_log_prob, softmax_log_prob_back, softmax_log_prob_sum

__all__ = [
    "AttendedLoop", "Choice", "Context", "GatedLoop", "GatedOptions", "Gather", "Step", "attend", "bank_scan",
    "best_path", "choose", "convolution", "cos", "exp", "gated", "gathered", "hmm_expected", "hmm_filter",
    "hmm_log_prob", "hmm_posterior", "json_rows", "l2_norm", "layer_norm", "linear", "linear_scan", "log",
    "log_sum_exp", "loop", "matrix_scan", "max_scan", "negative_binomial_log_prob", "philox", "reverse", "rms_norm",
    "selective_scan", "sigmoid", "silu", "sin", "softmax_log_prob", "softmax_log_prob_back", "softmax_log_prob_sum",
    "softplus", "student_t", "student_t_log_prob", "tanh", "trace_step",
]  # fmt: skip
