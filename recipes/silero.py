"""silero-vad, the voice detector of millions of products, on Elman: the same probabilities, and a state that is whole.

    pip install --no-deps silero-vad; pip install onnx
    python recipes/silero.py FILE.wav        when there is speech in a file of 16,000 samples a second
    python -m recipes.silero_figures         the figures of docs/results/silero-vad.md

Frames of 512 samples (32 ms) go through a Fourier transform, four convolutions and an LSTM:

    z = [64 samples before | x | 64 samples mirrored]
    S[w, f] = |sum_n window[n] z[128 w + n] e^(-2 pi i f n / 256)|
    S (4, 129) -> relu(conv 3 x 128) -> relu(conv 3 x 64, every other) -> relu(conv 3 x 64, every other)
      -> relu(conv 3 x 128) (1, 128) -> h, c = LSTM -> P(voice) = sigmoid(v relu(h) + b)

The model file takes and gives the LSTM's state (2, B, 128). The 64 samples before are not in it: its caller keeps them,
and has to put them in front of the next frame of the same stream. Here they are a leaf of the state like h and c, so
what is saved, forked, reset or moved to another row is all that the next probability depends on. Only the weights are
theirs.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import elman
from elman import kernels
from elman.errors import ElmanError, FileError, InputError
from elman.kernels.builder import Builder, Slot, Slots
from elman.kernels.trace import step_through

RATE, FRAME, CONTEXT, WINDOW, HOP = 16000, 512, 64, 256, 128  # in samples
WINDOWS, BINS = 4, WINDOW // 2 + 1
# Column n of a window, n = 1 ... 128, and the one that mirrors it, n = 255 ... 128; past its end, z itself is mirrored.
MIRRORED = [HOP * w + WINDOW - 1 - n for w in range(WINDOWS) for n in range(HOP)]
MIRRORED = [n if n < CONTEXT + FRAME else 2 * (CONTEXT + FRAME - 1) - n for n in MIRRORED]
FAINTEST = 1e-30  # the gradient of a root is infinite at 0: silence would make it NaN
Weights = Mapping[str, Tensor]


class EarState(NamedTuple):
    context: Tensor  # (B, 64): the end of the frame before


class Ear(elman.Core):
    """A frame of samples (B, 512) -> what the LSTM reads (B, 128).

    A window of the Fourier transform is symmetric, so both halves of a window of samples are added (for the cosines)
    or subtracted (for the sines) before they are multiplied: half of the products.
    """

    def __init__(self, weights: Weights) -> None:
        super().__init__(FRAME, 128)
        cosines, sines = (fold(part, sign) for part, sign in zip(basis(weights), (1, -1), strict=True))
        self.cosines, self.sines = nn.Parameter(cosines), nn.Parameter(sines)  # (129, 128)
        taps = {1: slice(0, 3), 2: slice(0, 3), 3: slice(1, 3), 4: slice(1, 2)}  # the others would read padding alone
        self.W = nn.ParameterList(by_column(weights[f"conv{i}.weight"][..., some]) for i, some in taps.items())
        self.b = nn.ParameterList(weights[f"conv{i}.bias"].clone() for i in taps)

    def init_state(self, batch_size: int) -> EarState:
        return EarState(self.zeros(batch_size, CONTEXT))

    def step(self, x: Tensor, state: EarState) -> tuple[Tensor, EarState]:
        return self.hear(torch.cat([state.context, x], -1)), EarState(x[..., -CONTEXT:])

    def hear(self, z: Tensor) -> Tensor:
        """z (..., 576) -> (..., 128)."""
        left, right = z[..., 1 : 1 + WINDOWS * HOP], z[..., MIRRORED]
        real = kernels.windows(left + right, self.cosines, None, HOP)
        imaginary = kernels.windows(left - right, self.sines, None, HOP)
        power = real * real + imaginary * imaginary
        y = kernels.sqrt(torch.maximum(power, torch.tensor(FAINTEST)))  # (..., 4 * 129), windows side by side
        edge = torch.zeros_like(y[..., :BINS])
        y = torch.relu(kernels.windows(torch.cat([edge, y, edge], -1), self.W[0], self.b[0], BINS))
        edge = torch.zeros_like(y[..., :128])
        y = torch.relu(kernels.windows(torch.cat([edge, y], -1), self.W[1], self.b[1], 2 * 128))
        y = torch.relu(kernels.linear(y, self.W[2], self.b[2]))
        return torch.relu(kernels.linear(y, self.W[3], self.b[3]))

    def _scan(self, x: Tensor, state: EarState, lengths: Tensor, reset: Tensor) -> tuple[Tensor, EarState]:
        """All frames at once: each is preceded by the end of the one before it, or by nothing after a reset."""
        before = torch.cat([state.context.unsqueeze(1), x[..., -CONTEXT:]], 1)  # (B, T + 1, 64)
        context = before[:, :-1].where(~reset.unsqueeze(-1), 0.0)
        valid = torch.arange(x.shape[1]) < lengths.unsqueeze(1)
        y = self.hear(torch.cat([context, x], -1)).where(valid.unsqueeze(-1), 0.0)
        return y, EarState(before[torch.arange(len(x)), lengths])

    def describe_step(self, builder: Builder, x: Slot, state: Slots) -> Slot:
        return step_through(builder, self.step, x, state, self.init_state(1))


class Voice(elman.Core):
    """P(voice) = sigmoid(v relu(h) + b), (B, 128) -> (B, 1)."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(128, 1)
        self.v = nn.Parameter(weights["final_conv.weight"][..., 0].clone())
        self.b = nn.Parameter(weights["final_conv.bias"].clone())

    def init_state(self, batch_size: int) -> tuple[()]:
        return ()

    def step(self, x: Tensor, state: tuple[()]) -> tuple[Tensor, tuple[()]]:
        return self.judge(x), ()

    def judge(self, h: Tensor) -> Tensor:
        """h (..., 128) -> (..., 1)."""
        return kernels.sigmoid(kernels.linear(torch.relu(h), self.v, self.b))

    def _scan(self, x: Tensor, state: tuple[()], lengths: Tensor, reset: Tensor) -> tuple[Tensor, tuple[()]]:
        valid = torch.arange(x.shape[1]) < lengths.unsqueeze(1)
        return self.judge(x).where(valid.unsqueeze(-1), 0.0), ()

    def describe_step(self, builder: Builder, x: Slot, state: Slots) -> Slot:
        return step_through(builder, self.step, x, (), ())


def network(weights: Weights) -> elman.Stack:
    """The whole detector: frames (B, T, 512) -> probabilities (B, T, 1). Its state: 64 samples, h and c."""
    lstm = elman.LSTM(128, 128)  # gates in the same order as PyTorch's
    with torch.no_grad():
        lstm.U.copy_(weights["lstm_cell.weight_ih"])
        lstm.W.copy_(weights["lstm_cell.weight_hh"])
        lstm.b.copy_(weights["lstm_cell.bias_ih"] + weights["lstm_cell.bias_hh"])
    return elman.Stack(Ear(weights), lstm, Voice(weights)).eval().requires_grad_(False)


def basis(weights: Weights) -> tuple[Tensor, Tensor]:
    """The windowed cosines and sines (129, 256) of the Fourier transform."""
    cosines, sines = weights["stft_conv.weight"][:, 0].split(BINS)
    return cosines, sines


def fold(part: Tensor, sign: int) -> Tensor:
    """Columns 1 to 128 of a transform whose column 256 - n is `sign` times column n. The middle one is halved, for what
    it multiplies is added to itself."""
    mirrored = part[:, 1:].flip(1)
    if not torch.allclose(part[:, 1:], sign * mirrored, atol=1e-5) or part[:, 0].abs().max() > 1e-6:
        raise InputError(
            "stft_conv.weight is not a Fourier transform under a symmetric window, as the one of silero-vad is"
        )
    folded = part[:, 1 : HOP + 1].clone()
    folded[:, -1] *= 0.5
    return folded


def by_column(weight: Tensor) -> Tensor:
    """(N, D, taps) of a convolution -> (N, taps * D): what multiplies `taps` steps side by side."""
    return weight.transpose(1, 2).flatten(1).clone()


def package_file(package: str, name: str) -> Path:
    """A file of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FileError(f"{package} is not installed: pip install --no-deps {package.replace('_', '-')}")
    return Path(spec.submodule_search_locations[0]) / name


def load() -> elman.Stack:
    """The detector with the weights of the installed package, those that `silero_vad.onnx` has for 16,000 samples."""
    return network(read_onnx(package_file("silero_vad", "data/silero_vad_16k_sequence.onnx")))


def read_onnx(path: Path) -> Weights:
    """The weights of a model file. (Those of the package's `silero_vad_16k.safetensors` are of another training.)"""
    try:
        import onnx
    except ImportError:
        raise FileError("onnx is not installed, which reads the weights: pip install onnx") from None
    graph = onnx.load(str(path)).graph
    arrays = {array.name: torch.from_numpy(onnx.numpy_helper.to_array(array).copy()) for array in graph.initializer}
    lstm = next(node for node in graph.node if node.op_type == "LSTM")
    W, R, both = (arrays[name][0] for name in lstm.input[1:4])
    weights = {"stft_conv.weight": arrays["stft.forward_basis_buffer"]}
    for kind in ("weight", "bias"):
        weights |= {f"conv{i}.{kind}": arrays[f"encoder.{i - 1}.{kind}"] for i in range(1, 5)}
        weights[f"final_conv.{kind}"] = arrays[f"output.{kind}"]
    b_ih, b_hh = both.chunk(2)
    named = {"weight_ih": W, "weight_hh": R, "bias_ih": b_ih, "bias_hh": b_hh}
    return weights | {f"lstm_cell.{name}": _reordered(array) for name, array in named.items()}


def _reordered(gates: Tensor) -> Tensor:
    """The gates i, o, f, g of ONNX as i, f, g, o of PyTorch and Elman."""
    return gates.unflatten(0, (4, -1))[[0, 2, 3, 1]].flatten(0, 1)


def frames(sound: np.ndarray) -> np.ndarray:
    """Samples (n,) -> (T, 512) float32, the last frame filled with silence."""
    return np.pad(sound.astype(np.float32), (0, -len(sound) % FRAME)).reshape(-1, FRAME)


def probabilities(detector: elman.Stack, sound: np.ndarray, block: int = 512) -> np.ndarray:
    """P(voice) of every frame of a recording (n,), `block` frames at a time: cut anywhere, the bits are the same."""
    parts, state = [], None
    for part in torch.from_numpy(frames(sound)).split(block):
        y, state = detector.scan(part[None], state)
        parts.append(y[0, :, 0].numpy())
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def segments(p: np.ndarray, threshold: float = 0.5, pause: int = 3) -> Iterator[tuple[float, float]]:
    """Seconds (from, to) where P is above the threshold; shorter pauses (in frames) are bridged."""
    start = end = None
    for i, above in enumerate([*(p > threshold), *[False] * pause]):
        if above:
            start, end = i if start is None else start, i + 1
        elif start is not None and end is not None and i - end + 1 >= pause:
            yield start * FRAME / RATE, end * FRAME / RATE
            start = None


def read_wav(path: str) -> np.ndarray:
    from scipy.io import wavfile

    rate, samples = wavfile.read(path)
    if rate != RATE or samples.ndim != 1 or samples.dtype != np.int16:
        raise FileError(
            f"{path} has {rate} samples of {samples.dtype} a second, shape {list(samples.shape)}; this reads one "
            f"channel of 16-bit numbers, 16000 a second: ffmpeg -i {path} -ac 1 -ar 16000 -c:a pcm_s16le out.wav"
        )
    return samples / np.float32(32768)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="a WAV file in which to find speech")
    for start, end in segments(probabilities(load(), read_wav(parser.parse_args().file))):
        print(f"{start:.2f} to {end:.2f} s")


if __name__ == "__main__":
    try:
        main()
    except ElmanError as error:
        sys.exit(f"silero: error: {error}")
