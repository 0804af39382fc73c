"""The figures of docs/results/silero-vad.md: `python -m recipes.silero_figures`.

    pip install --no-deps silero-vad; pip install onnxruntime scipy; apt-get install espeak-ng
    python -m recipes.silero_figures --only speed      one part of them

What is compared are the ONNX files of the package, on one thread of ONNX Runtime, as the package runs them.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import elman
from elman.errors import ElmanError, FileError
from recipes.silero import CONTEXT, FRAME, RATE, frames, load, package_file, probabilities

# What it is measured on: sound that anyone can make.

TEXT = (
    "A recurrent network carries its past in a state. Whoever streams sound has to keep that state for every speaker, "
    "through pauses, noise and music, and must never mix two of them up. Seven hundred and sixty three boats left the "
    "harbour before noon; none of them had heard the warning."
)


def spoken(voice: str, speed: int) -> np.ndarray:
    """TEXT as espeak-ng says it, (n,) at 16,000 samples a second, at most 1."""
    from scipy.io import wavfile
    from scipy.signal import resample_poly

    if shutil.which("espeak-ng") is None:
        raise FileError("espeak-ng is not installed, which makes the speech: apt-get install espeak-ng")
    made = subprocess.run(
        ["espeak-ng", "-v", voice, "-s", str(speed), "--stdout", TEXT], capture_output=True, check=True
    )
    wav = bytearray(made.stdout)  # written to a pipe, its sizes are not known
    wav[4:8], wav[40:44] = (len(wav) - 8).to_bytes(4, "little"), (len(wav) - 44).to_bytes(4, "little")
    rate, samples = wavfile.read(io.BytesIO(bytes(wav)))
    return resample_poly(samples / 32768, RATE, rate).astype(np.float32)


def made_sound(minutes: float = 10.0, seed: int = 0) -> np.ndarray:
    """Speech of several voices, loud, quiet and in noise; noise alone; tones; clipped; and silence."""
    random = np.random.default_rng(seed)
    speech = [spoken(voice, speed) for voice, speed in (("en", 150), ("de", 190), ("en+f3", 120), ("es+m4", 220))]
    second, parts, length = RATE, [], 0
    while length < minutes * 60 * RATE:
        words = speech[random.integers(len(speech))]
        noise = random.normal(size=len(words)).astype(np.float32)
        t = np.arange(4 * second) / RATE
        part = [
            words * random.choice([0.01, 0.1, 0.5, 1.0]),
            words * 0.3 + noise * random.choice([0.003, 0.03, 0.3]),
            np.clip(words * 20, -1, 1),
            noise[: 5 * second] * random.choice([1e-4, 1e-2, 0.3]),
            np.sin(2 * np.pi * random.uniform(80, 4000) * t) * 0.5,
            np.zeros(4 * second),
        ][random.integers(6)]
        parts.append(part.astype(np.float32))
        length += len(part)
    return np.concatenate(parts)[: int(minutes * 60 * RATE)]


# Their own ONNX files, on one thread, as their package runs them.


class Onnx:
    """The model file a frame at a time. Who calls it keeps the state and the 64 samples, as their wrapper does."""

    def __init__(self, name: str = "silero_vad.onnx") -> None:
        self.session = onnx_session(name)
        self.state = np.zeros((2, 1, 128), np.float32)
        self.context = np.zeros((1, CONTEXT), np.float32)
        self.rate = np.array(RATE)

    def step(self, x: np.ndarray) -> np.ndarray:
        x = np.concatenate([self.context, x], 1)
        y, self.state = self.session.run(None, {"input": x, "state": self.state, "sr": self.rate})
        self.context = x[:, -CONTEXT:]
        return y


def onnx_session(name: str) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    path = package_file("silero_vad", f"data/{name}")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def onnx_recording(x: np.ndarray, block: int = 512) -> Callable[[], np.ndarray]:
    """A recording (T, 512) by the package's file for recordings, a block of frames in a call, as the package does."""
    session = onnx_session("silero_vad_16k_sequence.onnx")
    contexts = np.concatenate([np.zeros((1, CONTEXT), np.float32), x[:-1, -CONTEXT:]])
    heard = np.concatenate([contexts, x], 1)

    def run() -> np.ndarray:
        h = c = np.zeros((1, 1, 128), np.float32)
        parts = []
        for at in range(0, len(heard), block):
            p, h, c = session.run(["speech_probs", "hn", "cn"], {"input": heard[at : at + block], "h": h, "c": c})
            parts.append(p.reshape(-1))
        return np.concatenate(parts)

    return run


# The figures.


def best(call: Callable[[], object], seconds: float = 1.5) -> float:
    """The shortest time of a call, in seconds."""
    call()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def agreement(detector: elman.Stack, sound: np.ndarray) -> None:
    onnx, stream, x = Onnx(), elman.Stream(detector, 1), frames(sound)
    theirs = np.array([onnx.step(x[t : t + 1])[0, 0] for t in range(len(x))])
    ours = np.array([stream.step(x[t : t + 1])[0, 0] for t in range(len(x))])
    whole = probabilities(detector, sound)
    print(f"{len(x)} frames, {(theirs > 0.5).mean():.0%} of them voice; native: {stream.native}")
    print(
        f"largest difference to silero_vad.onnx: {abs(ours - theirs).max():.1e}; scan and stream: {bits(ours, whole)}"
    )
    sequence = onnx_recording(x)()
    print(f"silero_vad.onnx against the package's file for recordings: {abs(theirs - sequence).max():.1e}")


def speed(detector: elman.Stack, sound: np.ndarray) -> None:
    torch.set_num_threads(1)
    x = frames(sound)[:512]
    for name in ("silero_vad.onnx", "silero_vad_op18_ifless.onnx"):
        onnx = Onnx(name)
        theirs = best(lambda onnx=onnx: [onnx.step(x[t : t + 1]) for t in range(64)]) / 64  # type: ignore[misc]
        print(f"a frame, one core: {name} {theirs * 1e6:.1f} us")
    stream = elman.Stream(detector, 1)
    ours = best(lambda: [stream.step(x[t : t + 1]) for t in range(64)]) / 64
    print(f"a frame, one core: Elman {ours * 1e6:.1f} us")
    theirs = best(onnx_recording(x)) / len(x)
    ours = best(lambda: probabilities(detector, x.reshape(-1))) / len(x)
    print(f"a frame of a recording, one core: sequence.onnx {theirs * 1e6:.1f} us, Elman {ours * 1e6:.1f} us")


def streams(detector: elman.Stack, sound: np.ndarray, threads: int = 2) -> None:
    """How many sessions two cores keep up with, in groups of any size, some of them reset, moved and stepped alone."""
    torch.set_num_threads(threads)
    x = frames(sound)
    for rows in (16, 128, 512, 2048):
        stream, named = elman.Stream(detector, rows), np.arange(rows)
        feed = [np.ascontiguousarray(x[(named * 7 + t) % len(x)]) for t in range(4)]
        seconds = best(lambda s=stream, f=feed: [s.step(part) for part in f]) / 4  # type: ignore[misc]
        keep_up = FRAME / RATE / seconds * rows
        print(f"{rows} sessions a step: {seconds / rows * 1e6:.1f} us a frame, {keep_up:,.0f} at real time")
    mixed(detector, x)


def mixed(detector: elman.Stack, x: np.ndarray, rows: int = 300, steps: int = 60, seed: int = 1) -> None:
    """Sessions that speak now and then, in any company, each against itself alone: the same bits."""
    random = np.random.default_rng(seed)
    stream, said = elman.Stream(detector, rows), [[] for _ in range(rows)]  # type: ignore[var-annotated]
    for _ in range(steps):
        some = random.permutation(rows)[: random.integers(1, rows)]
        given = x[[(row * 31 + len(said[row])) % len(x) for row in some]]
        for row, p in zip(some, stream.step(given, some)[:, 0], strict=True):
            said[row].append(p)
    same = True
    for row in random.permutation(rows)[:50]:
        alone = elman.Stream(detector, 1)
        own = [alone.step(x[[(row * 31 + t) % len(x)]])[0, 0] for t in range(len(said[row]))]
        same &= own == said[row]
    verdict = "the same bits" if same else "OTHER BITS"
    print(f"{rows} sessions in {steps} steps of 1 to {rows} of them, each against itself alone: {verdict}")


def mistakes(detector: elman.Stack, sound: np.ndarray) -> None:
    """What the usual mistakes with the 64 samples cost: probabilities of the model file, carried wrongly."""
    x = frames(sound)
    right = Onnx()
    theirs = np.array([right.step(x[t : t + 1])[0, 0] for t in range(len(x))])
    for what, wrong in WRONG.items():
        onnx = Onnx()
        p = []
        for t in range(len(x)):
            wrong(onnx, t)
            p.append(onnx.step(x[t : t + 1])[0, 0])
        differ = abs(np.array(p) - theirs)
        decisions = ((np.array(p) > 0.5) != (theirs > 0.5)).mean()
        print(f"{what}: differs by up to {differ.max():.2f}, {decisions:.1%} of all decisions are others")


def _forget_context(onnx: Onnx, t: int) -> None:
    onnx.context = np.zeros((1, CONTEXT), np.float32)


def _restore_state_alone(onnx: Onnx, t: int) -> None:
    if t % 30 == 0:  # about once a second the session is saved, and continued elsewhere
        onnx.context = np.zeros((1, CONTEXT), np.float32)


WRONG: dict[str, Callable[[Onnx, int], None]] = {
    "no samples before the frame (padded with zeros)": _forget_context,
    "a state that is saved and restored every second without them": _restore_state_alone,
}


def bits(a: np.ndarray, b: np.ndarray) -> str:
    return "the same bits" if np.array_equal(a, b) else f"OTHER BITS, by {abs(a - b).max():.1e}"


PARTS = {"agreement": agreement, "mistakes": mistakes, "speed": speed, "streams": streams}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, help="one part of the figures")
    parser.add_argument("--minutes", type=float, default=10.0, help="of made sound")
    flags = parser.parse_args()
    detector = load()
    sound = made_sound(flags.minutes)
    for name, part in PARTS.items():
        if flags.only in (None, name):
            part(detector, sound)


if __name__ == "__main__":
    try:
        main()
    except ElmanError as error:
        sys.exit(f"silero_figures: error: {error}")
