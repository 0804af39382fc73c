"""The kernels of csrc/ as Torch operations. Importing this fails where the native module is not built."""

from elman._native import isa, isas
from elman.kernels.native.attention import attend, attended
from elman.kernels.native.attention import fits as attended_fits
from elman.kernels.native.channels import bank_scan, convolution, selective_scan
from elman.kernels.native.densities import negative_binomial_log_prob, student_t_log_prob
from elman.kernels.native.draws import choose, digest, philox, student_t
from elman.kernels.native.elementwise import cos, exp, log, sigmoid, silu, sin, softplus, tanh
from elman.kernels.native.gated import gated
from elman.kernels.native.gated_pair import gated_pair
from elman.kernels.native.gathered import gathered
from elman.kernels.native.hmm import HmmGaussian, best_path, hmm_expected, hmm_filter, hmm_log_prob, hmm_posterior
from elman.kernels.native.json import json_rows
from elman.kernels.native.matrix import matrix_scan
from elman.kernels.native.memory import release as release_memory
from elman.kernels.native.norm import l2_norm, layer_norm, rms_norm
from elman.kernels.native.op import calls
from elman.kernels.native.product import linear
from elman.kernels.native.program import Program
from elman.kernels.native.scan import linear_scan, max_scan, reverse
from elman.kernels.native.softmax import softmax_log_prob, softmax_log_prob_sum
from elman.kernels.native.tape import lower, trace_step

__all__ = [
    "HmmGaussian", "Program", "attend", "attended", "attended_fits", "bank_scan", "best_path", "calls", "choose",
    "convolution", "cos", "digest", "exp", "gated", "gated_pair", "gathered", "hmm_expected", "hmm_filter",
    "hmm_log_prob", "hmm_posterior", "isa", "isas", "json_rows", "l2_norm", "layer_norm", "linear", "linear_scan",
    "log", "lower", "matrix_scan", "max_scan", "negative_binomial_log_prob", "philox", "release_memory", "reverse",
    "rms_norm", "selective_scan", "sigmoid", "silu", "sin", "softmax_log_prob", "softmax_log_prob_sum", "softplus",
    "student_t", "student_t_log_prob", "tanh", "trace_step",
]  # fmt: skip
