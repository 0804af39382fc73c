"""The moving picture of README.md: `python docs/start/hero.py` writes hero.svg beside itself, in a few seconds.

The first of 60 inputs says which of four classes a row has, the rest is noise; the answer is asked for at the end.
Three networks of 32 units take 200 steps of Adam. A square is an input; its colour is the size of the gradient of the
loss with respect to the state that enters it, over that of the last input (`elman.lens`). The percentage is the share
of 256 other rows whose class is right. Seed 0; with other seeds the tanh network may learn the task after 200 steps.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn

import elman
from elman.nn.readout import Pooled, Softmax

T, SIZE, CLASSES = 60, 32, 4
FRAMES = [0, 3, 6, 9, 12, 16, 20, 24, 28, 34, 40, 50, 60, 80, 100, 120, 140, 160, 180, 200]
CORES = {
    "tanh network": ("as torch.nn starts it", lambda: elman.from_torch(nn.RNN(1 + CLASSES, SIZE, batch_first=True))),
    "LSTM": ("as torch.nn starts it", lambda: elman.from_torch(nn.LSTM(1 + CLASSES, SIZE, batch_first=True))),
    "LSTM, open gate": ("forget_bias=3", lambda: elman.cell("lstm", 1 + CLASSES, SIZE, forget_bias=3.0)),
}
# Seconds: the gradient runs back through the fresh networks, they train, the end is shown.
BACK, TRAIN, HOLD = 3.0, 6.0, 4.0
LENGTH = BACK + TRAIN + HOLD
DEAD, ALIVE = (38, 50, 74), (255, 190, 60)
LEFT, PITCH, TOP, ROW = 168, 11.4, 104, 76


def rows(seed: int, n: int) -> tuple[Tensor, Tensor]:
    """Inputs (n, T, 1 + classes) and classes (n,)."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (n,), generator=generator)
    x = torch.zeros(n, T, 1 + CLASSES)
    x[..., 0] = torch.randn(n, T, generator=generator)
    x[torch.arange(n), 0, 1 + y] = 1.0
    return x, y


def observe(network: elman.SequenceModel) -> tuple[float, list[float]]:
    """The accuracy, and for each input how much of the gradient arrives there: 1 for all of it, 0 for 1e-6 and less."""
    x, y = rows(10**6, 256)
    with torch.no_grad():
        accuracy = float((network.scan(x)[0].mode == y).float().mean())
    reach = elman.lens.inspect(network, *rows(7, 16), anchors=16).reach[0]
    by_distance = dict(zip(reach.tau, reach.relative, strict=True))
    shades = [1 + math.log10(max(min(by_distance.get(tau, 0.0), 1.0), 1e-6)) / 6 for tau in range(T, 0, -1)]
    return accuracy, shades


def train(core: elman.Core) -> list[tuple[float, list[float]]]:
    """What is observed at each of FRAMES."""
    network = elman.SequenceModel(
        nn.Identity(), elman.Stack(core, elman.Pool("last", SIZE)), Pooled(Softmax(SIZE, CLASSES))
    )
    optimiser = torch.optim.Adam(network.parameters(), lr=0.005)
    observed = []
    for step in range(FRAMES[-1] + 1):
        if step in FRAMES:
            observed.append(observe(network))
        x, y = rows(step, 32)
        optimiser.zero_grad()
        (-network.scan(x)[0].log_prob(y).mean()).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
    return observed


def colour(shade: float) -> str:
    return "#" + "".join(f"{round(a + (b - a) * shade):02x}" for a, b in zip(DEAD, ALIVE, strict=True))


def percent(seconds: float) -> str:
    return f"{100 * seconds / LENGTH:.4g}%"


def times() -> list[float]:
    return [BACK + TRAIN * i / (len(FRAMES) - 1) for i in range(len(FRAMES))]


def square(name: str, position: int, shades: list[float]) -> str:
    """The keyframes of one input: dark until the gradient has come back to it, then what training makes of it."""
    arrival = 0.3 + (BACK - 1) * (T - 1 - position) / T
    frames = [(0.0, colour(0)), (arrival, colour(0)), (arrival + 0.3, colour(shades[0]))]
    frames += list(zip(times(), map(colour, shades), strict=True))
    kept = [
        frames[0],
        *(b for a, b, c in zip(frames, frames[1:], frames[2:], strict=False) if not a[1] == b[1] == c[1]),
    ]
    kept += [(LENGTH, frames[-1][1])]
    return f"@keyframes {name}{{" + "".join(f"{percent(t)}{{fill:{fill}}}" for t, fill in kept) + "}"


def label(texts: list[str], x: float, y: float, kind: str) -> str:
    """A text that changes with the frames: each stands there until the next; without motion, the last alone."""
    drawn = []
    begins = [0.0, *times()[1:]]
    for i, text in enumerate(texts):
        begin, end = begins[i], begins[i + 1] if i + 1 < len(texts) else LENGTH
        name, last = f"{kind}{i}", i + 1 == len(texts)
        keys = f"0%{{opacity:{int(i == 0)}}}{percent(begin)}{{opacity:1}}{percent(end)}{{opacity:{int(last)}}}"
        drawn.append(
            f"<style>@keyframes {name}{{{keys}}}#{name}{{animation:{name} {LENGTH}s step-end infinite}}</style>"
            f'<text id="{name}" x="{x}" y="{y}" text-anchor="end" class="value" opacity="{int(last)}">{text}</text>'
        )
    return "".join(drawn)


STYLE = f"""text{{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#e2e8f0}}
.title{{font-size:23px;font-weight:600}}.name{{font-size:14.5px;font-weight:600}}.note{{font-size:13px;fill:#94a3b8}}
.value{{font-size:21px;font-weight:600}}rect.g{{animation-duration:{LENGTH}s;animation-iteration-count:infinite}}
@media (prefers-reduced-motion:reduce){{*{{animation:none !important}}}}"""


def draw(observed: dict[str, list[tuple[float, list[float]]]]) -> str:
    right = LEFT + T * PITCH
    parts, keys = [], []
    for r, (name, frames) in enumerate(observed.items()):
        y = TOP + r * ROW
        parts.append(f'<text x="24" y="{y + 16}" class="name">{name}</text>')
        parts.append(f'<text x="24" y="{y + 35}" class="note">{CORES[name][0]}</text>')
        for t in range(T):
            shades = [shade[t] for _, shade in frames]
            keys.append(square(f"s{r}_{t}", t, shades))
            parts.append(
                f'<rect class="g" x="{LEFT + t * PITCH:.1f}" y="{y}" width="{PITCH - 2:.1f}" height="38" rx="2" '
                f'fill="{colour(shades[-1])}" style="animation-name:s{r}_{t}"/>'
            )
        parts.append(label([f"{accuracy:.0%}" for accuracy, _ in frames], 936, y + 28, f"a{r}_"))
    parts.append(label([f"training step {step}" for step in FRAMES], 936, TOP + 3 * ROW, "step"))
    end = TOP + 3 * ROW
    scale = "".join(
        f'<rect x="{right - 280 + 13 * i}" y="{end - 12}" width="12" height="12" fill="{colour(i / 6)}"/>'
        for i in range(7)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 {end + 26}" role="img" '
        'aria-label="Where the gradient dies: in a tanh network and an LSTM that start as in torch.nn it fades within '
        "ten inputs, and both stay near chance; with an open forget gate it reaches the first of 60 inputs, and every "
        'answer is right.">'
        f"<style>{STYLE}{''.join(keys)}</style>"
        f'<rect width="960" height="{end + 26}" rx="14" fill="#0f172a"/>'
        '<text x="24" y="46" class="title">The answer is in the first of 60 inputs. Does the gradient get there?</text>'
        f'<text x="{LEFT}" y="84" class="note">▼ the input to remember</text>'
        f'<text x="{right - 24}" y="84" class="note" text-anchor="end">'
        "◀ gradient of the answer, back through time</text>"
        '<text x="936" y="84" class="note" text-anchor="end">right answers</text>'
        f"{''.join(parts)}"
        f'<text x="24" y="{end - 1}" class="note">Measured by elman.lens, which shows this of any model.</text>'
        f'<text x="{right - 290}" y="{end - 1}" class="note" text-anchor="end">arrives: 1e-6</text>{scale}'
        f'<text x="{right - 182}" y="{end - 1}" class="note">1</text></svg>\n'
    )


def main() -> None:
    torch.set_num_threads(1)
    observed = {}
    for name, (_, make) in CORES.items():
        torch.manual_seed(0)
        observed[name] = train(make())
        print(name, [f"{accuracy:.2f}" for accuracy, _ in observed[name]])
    Path(__file__).with_name("hero.svg").write_text(draw(observed))


if __name__ == "__main__":
    main()
