"""A stream of a million rows, killed at twenty random instants: `python -m bench.killed_stream`.

`elman stream --learn --replay` reads rows of a file, once undisturbed and once killed by SIGKILL again and again, each
time from the first row. The state must end in the same bytes, and every line that it wrote must be the one that the
undisturbed stream wrote of that row.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMAND = [sys.executable, "-m", "elman", "stream", "--learn", "--replay", "--threads", "1", "--task", "regress"]


def write_rows(path: Path, count: int, seed: int) -> None:
    """A feature, and a target that is a function of the one before."""
    chance, before = random.Random(seed), 0.0
    with path.open("w") as file:
        for _ in range(count):
            x = chance.gauss(0, 1)
            file.write(json.dumps({"x": round(x, 4), "y": round(before, 4)}) + "\n")
            before = x


def start(folder: Path, name: str, options: list[str]) -> subprocess.Popen[bytes]:
    with (folder / "rows").open() as rows, (folder / f"{name}.out").open("ab") as out:
        return subprocess.Popen(
            [*COMMAND, str(folder / name), *options], stdin=rows, stdout=out, stderr=subprocess.DEVNULL
        )


def compared(folder: Path) -> int:
    """How many lines the stream that was killed wrote; all of them complete are those of the other."""
    whole = (folder / "whole.out").read_text().splitlines()
    count = 0
    for line in (folder / "cut.out").read_text().splitlines():
        for part in filter(None, line.split('{"row"')):  # what a kill cut off stands before a line
            text = '{"row"' + part
            if text.endswith("}"):
                count += 1
                assert whole[json.loads(text)["row"] - 1] == text, f"{text} is not what was written undisturbed"
    return count


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.killed_stream", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the stream")
    parser.add_argument("--kills", type=int, default=20, help="at random instants")
    parser.add_argument("--size", type=int, default=16, help="units of the learner")
    parser.add_argument("--seed", type=int, default=0, help="of the rows and the instants")
    flags = parser.parse_args()
    chance, options = random.Random(flags.seed), ["--size", str(flags.size), "--save_every", "1000"]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_rows(folder / "rows", flags.rows, flags.seed)
        begin = time.monotonic()
        if start(folder, "whole", options).wait() != 0:
            raise SystemExit("the undisturbed stream failed")
        seconds = time.monotonic() - begin
        print(f"undisturbed: {flags.rows} rows in {seconds:.0f} s", flush=True)
        killed = 0
        while killed < flags.kills:
            process = start(folder, "cut", options)
            try:
                code = process.wait(timeout=chance.uniform(0, 2 * seconds / flags.kills))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                killed += 1
            else:
                raise SystemExit(f"it ended by itself ({code}) after {killed} kills; another --seed")
        if start(folder, "cut", options).wait() != 0:
            raise SystemExit("the stream that was killed failed")
        whole, cut = ((folder / name / "learner" / "state.safetensors").read_bytes() for name in ("whole", "cut"))
        equal = whole == cut
        print(f"killed {killed} times: state {'equal, byte for byte' if equal else 'NOT equal'}", flush=True)
        print(f"{compared(folder)} lines written, each as undisturbed", flush=True)
    return 0 if equal else 1


if __name__ == "__main__":
    raise SystemExit(main())
