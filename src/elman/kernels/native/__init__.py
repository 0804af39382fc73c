"""The kernels of csrc/ as Torch operations. Importing this fails where the native module is not built."""

from elman._native import isa, isas
from elman.kernels.native.op import calls
from elman.kernels.native.scan import linear_scan

__all__ = ["calls", "isa", "isas", "linear_scan"]
