"""From the command to the first step: `python -m bench.first_step [--rounds 5] [--text FILE] [--json]`.

`elman train --task lm` on 1 MB of text, which is not in the cache, until the first line of metrics is there; and
`python -c "import torch"`, until that is done. Medians of the rounds, and the difference, in seconds.
"""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.turns import Report, figure, parser

MUST, AIM = 1.0, 0.5
BYTES = 1_000_000
TORCH = "import torch, os; os.write(1, b'.')"


def main() -> None:
    flags = parser("first_step", __doc__, 5)
    flags.add_argument("--text", help="the text to train on; random words if it is not named")
    options = flags.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text.txt").write_bytes(Path(options.text).read_bytes()[:BYTES] if options.text else _words())
        rounds = [(_import_torch(), _first_step(folder, i)) for i in range(options.rounds)]
    torch, step = (statistics.median(each) for each in zip(*rounds, strict=True))
    report = Report(options.json)
    report.add(
        figure("elman train to the first step on 1 MB of text, `import torch` taken off", step - torch, "s", MUST, AIM),
        figure("elman train to the first step on 1 MB of text", step, "s"),
        figure("import torch", torch, "s"),
    )
    report.end()


def _words() -> bytes:
    import random

    letters = random.Random(0)
    words = ["".join(letters.choices("etaoinshrdlucmfwypvbgkjqxz", k=letters.randint(1, 9))) for _ in range(5000)]
    return " ".join(letters.choices(words, k=BYTES // 5)).encode()[:BYTES]


def _import_torch() -> float:
    begin = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", TORCH], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.read(1)
        return time.perf_counter() - begin


def _first_step(folder: Path, number: int) -> float:
    out = folder / str(number)
    command = [sys.executable, "-m", "elman", "train", "--task", "lm", "--data.train", str(folder / "text.txt")]
    command += ["--out", str(out), "--training.log_every", "1"]
    environment = {**os.environ, "ELMAN_CACHE": str(folder / f"cache-{number}")}
    begin, metrics = time.perf_counter(), out / "metrics.jsonl"
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not metrics.exists() or not metrics.stat().st_size:
            assert process.poll() is None, f"{command} ended with {process.returncode}"
            time.sleep(0.002)
        return time.perf_counter() - begin
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
