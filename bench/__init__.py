"""Elman against its peers on this machine: ratios of times taken in one run. `python -m bench.kernels`."""
