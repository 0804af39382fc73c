"""Initial values that several cells share, and why."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


@torch.no_grad()
def recurrent(W: Tensor, gates: int = 1) -> None:
    """W (gates * N, M): orthogonal gate by gate, so that at the start no direction of the state grows or dies.

    Saxe, McClelland and Ganguli (2014). Orthogonal as one tall matrix, each gate's block would shrink by sqrt(gates).
    """
    for block in W.chunk(gates):
        nn.init.orthogonal_(block)


@torch.no_grad()
def input(U: Tensor, gates: int = 1) -> None:
    """U (gates * H, D): Glorot and Bengio (2010) for each gate by itself.

    Gates start in the part of their range that learns, whatever D, H and the number of gates are.
    """
    for block in U.chunk(gates):
        nn.init.xavier_uniform_(block)


@torch.no_grad()
def zeros(*parameters: Tensor | None) -> None:
    """Zero, where an option has given the cell that parameter."""
    for parameter in parameters:
        if parameter is not None:
            nn.init.zeros_(parameter)


@torch.no_grad()
def ones(*parameters: Tensor | None) -> None:
    """One, where an option has given the cell that parameter: a gain that changes nothing yet."""
    for parameter in parameters:
        if parameter is not None:
            nn.init.ones_(parameter)


@torch.no_grad()
def memory(b_i: Tensor, b_f: Tensor | None, forget_bias: float, t_max: float | None) -> None:
    """The biases of an LSTM's input and forget gates; without b_f, f = 1 - i. It remembers about 1 + exp(b_f) steps."""
    if t_max is None:  # with f = 1/2 a gradient would be gone in ten steps (Jozefowicz et al., 2015)
        forget = torch.full_like(b_i, forget_bias)
    else:  # Tallec and Ollivier (2018), equation 16: times spread evenly over [1, t_max - 1]
        forget = torch.empty_like(b_i).uniform_(1.0, t_max - 1.0).log()
    if b_f is not None:
        b_f.copy_(forget)
    if b_f is None or t_max is not None:  # 1 - i = s(forget): coupled, or so that the cell stays bounded
        b_i.copy_(-forget)


@torch.no_grad()
def convolution(w: Tensor) -> None:
    """The taps w (K, C) of a convolution of each channel by itself: as large a sum of K inputs as each of them."""
    nn.init.uniform_(w, -(len(w) ** -0.5), len(w) ** -0.5)


@torch.no_grad()
def step_lengths(b: Tensor, low: float, high: float) -> None:
    """Where softplus(b) is a length of step: log-uniform, so that channels differ in time scale."""
    dt = torch.empty_like(b, dtype=torch.float64).uniform_(math.log(low), math.log(high)).exp_()
    b.copy_(torch.log(torch.expm1(dt)))


@torch.no_grad()
def rates(A_log: Tensor) -> None:
    """The rate A = exp(A_log) of the decay exp(-dt A), from 1 to 16 (Mamba-2, section 7): with steps of 0.001 to 0.1,
    memories of one to a thousand steps."""
    A_log.copy_(torch.empty_like(A_log, dtype=torch.float64).uniform_(1.0, 16.0).log())
