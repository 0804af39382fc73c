"""The models of other packages in recipes/ compute what PyTorch computes of the same weights, and keep the laws.

The weights are random, in the shapes of the packages' files, so that the tests need neither package.
"""

from __future__ import annotations

import string
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import elman
from elman import kernels, laws
from elman.errors import InputError
from recipes import g2p, silero


def silero_weights() -> dict[str, Tensor]:
    torch.manual_seed(0)
    n, f = torch.arange(256, dtype=torch.float64), torch.arange(129, dtype=torch.float64)[:, None]
    hann, turn = 0.5 - 0.5 * torch.cos(2 * torch.pi * n / 256), 2 * torch.pi * f * n / 256
    weights = {"stft_conv.weight": torch.cat([hann * torch.cos(turn), -hann * torch.sin(turn)])[:, None].float()}
    for i, (inner, outer) in enumerate([(129, 128), (128, 64), (64, 64), (64, 128)], 1):
        conv = nn.Conv1d(inner, outer, 3)
        weights |= {f"conv{i}.weight": conv.weight.detach() * 2, f"conv{i}.bias": conv.bias.detach()}
    lstm, last = nn.LSTMCell(128, 128), nn.Conv1d(128, 1, 1)
    weights |= {f"lstm_cell.{name}": p.detach() for name, p in lstm.named_parameters()}
    return weights | {f"final_conv.{name}": p.detach() for name, p in last.named_parameters()}


def by_convolutions(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """P(voice) of one recording, frames (T, 512), with PyTorch's own layers: the network as its authors describe it."""
    lstm = nn.LSTMCell(128, 128)
    lstm.load_state_dict({name.removeprefix("lstm_cell."): w for name, w in weights.items() if "lstm" in name})
    context, state, found = torch.zeros(1, 64), None, []
    for frame in x.split(1):
        z = F.pad(torch.cat([context, frame], 1), (0, 64), "reflect")[:, None]
        real, imaginary = F.conv1d(z, weights["stft_conv.weight"], stride=128).split(129, 1)
        y = (real**2 + imaginary**2).sqrt()
        for i, stride in enumerate((1, 2, 2, 1), 1):
            y = F.relu(F.conv1d(y, weights[f"conv{i}.weight"], weights[f"conv{i}.bias"], stride, padding=1))
        state = lstm(y.squeeze(-1), state)
        p = F.conv1d(F.relu(state[0])[..., None], weights["final_conv.weight"], weights["final_conv.bias"])
        found.append(torch.sigmoid(p).flatten())
        context = frame[:, -64:]
    return torch.cat(found)


@torch.no_grad()
def test_the_voice_detector_is_its_convolutions_and_lstm() -> None:
    weights = silero_weights()
    x = torch.randn(12, 512) * torch.logspace(-4, 0, 12)[:, None]
    x[5] = 0.0
    y, state = silero.network(weights).scan(x[None])
    torch.testing.assert_close(y[0, :, 0], by_convolutions(weights, x), rtol=0, atol=2e-6)
    assert torch.equal(elman.state.leaves(state)[0][0], x[-1, -64:])  # what the model file leaves to its caller


def test_the_voice_detector_keeps_the_laws_and_streams_natively() -> None:
    detector = silero.network(silero_weights()).requires_grad_(True)
    report = laws.check(detector, batch_size=3, time=5)
    assert report.ok, report
    if kernels.active() == "native":
        assert report.exact, report
        assert elman.Stream(detector, 1).native


@torch.no_grad()
def test_the_voice_detector_as_a_file_has_the_whole_state(tmp_path: Path) -> None:
    detector, x = silero.network(silero_weights()), torch.randn(2, 6, 512)
    [file] = elman.export.onnx(detector, tmp_path / "voice.onnx")
    session = elman.onnx.Session(file)
    y, state = session.scan(x[:, :4].numpy(), session.init_state(2))
    rest, _ = session.scan(x[:, 4:].numpy(), state)
    np.testing.assert_allclose(np.concatenate([y, rest], 1), detector.scan(x)[0].numpy(), atol=1e-5)


def test_a_transform_that_is_not_symmetric_is_refused() -> None:
    weights = silero_weights()
    weights["stft_conv.weight"][3, 0, 7] += 0.1
    with pytest.raises(InputError, match="not a Fourier transform under a symmetric window"):
        silero.network(weights)


def test_speech_is_where_frames_are_above_the_threshold() -> None:
    p = np.array([0.1, 0.9, 0.2, 0.8, 0.1, 0.1, 0.1, 0.9])
    seconds = silero.FRAME / silero.RATE
    assert list(silero.segments(p)) == [(1 * seconds, 4 * seconds), (7 * seconds, 8 * seconds)]


def g2p_weights() -> dict[str, np.ndarray]:
    torch.manual_seed(0)
    shapes = {"enc_emb": (29, 6), "dec_emb": (74, 6), "fc_w": (74, 8), "fc_b": (74,)}
    for part in ("enc", "dec"):
        shapes |= {f"{part}_{name}": (24, width) for name, width in (("w_ih", 6), ("w_hh", 8))}
        shapes |= {f"{part}_b_ih": (24,), f"{part}_b_hh": (24,)}
    weights = {name: torch.randn(shape).numpy() for name, shape in shapes.items()}
    weights["fc_b"][3] += 2.0  # some words end before twenty phonemes
    return weights


def by_cells(weights: dict[str, np.ndarray], word: str) -> list[str]:
    """The phonemes of one word, by PyTorch's GRUCell."""
    w = {name: torch.from_numpy(array) for name, array in weights.items()}
    cells = {}
    for part in ("enc", "dec"):
        cells[part] = nn.GRUCell(6, 8)
        names = {"weight_ih": "w_ih", "weight_hh": "w_hh", "bias_ih": "b_ih", "bias_hh": "b_hh"}
        cells[part].load_state_dict({name: w[f"{part}_{theirs}"] for name, theirs in names.items()})
    h, written, last = torch.zeros(1, 8), [], 2
    for letter in [*word, "</s>"]:
        symbol = g2p.LETTERS.index(letter) if letter in g2p.LETTERS else 1
        h = cells["enc"](w["enc_emb"][[symbol]], h)
    for _ in range(20):
        h = cells["dec"](w["dec_emb"][[last]], h)
        last = int((h @ w["fc_w"].T + w["fc_b"]).argmax())
        if last == 3:
            break
        written.append(g2p.PHONEMES[last])
    return written


@torch.no_grad()
def test_words_are_pronounced_as_one_at_a_time() -> None:
    weights, random = g2p_weights(), np.random.default_rng(0)
    letters = [*string.ascii_lowercase, "'", "é"]
    words = ["", "a", "ab", "abc", "abd", "abcd", "abc", "b{", "b?"]  # some begin alike
    words += ["".join(random.choice(letters, random.integers(1, 9))) for _ in range(38)]
    expected = [by_cells(weights, word) for word in words]
    assert len({len(phonemes) for phonemes in expected}) > 1  # some end before twenty
    pronouncer = g2p.Pronouncer(weights)
    assert pronouncer.predict(words) == expected == pronouncer.predict(words, together=7)
    assert pronouncer.predict([]) == []


def test_made_words_are_so_many_and_different() -> None:
    words = g2p.made_words(300)
    assert len(set(words)) == 300 and words == g2p.made_words(300)
    assert all(set(word) <= set(string.ascii_lowercase) for word in words)
