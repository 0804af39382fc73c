"""elman convert: make a pretrained model, as others saved it, a model that every verb opens."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from elman.cli.output import print_json


def run(arguments: Sequence[str]) -> int:
    """Read the model, save it in a new folder, and say what it is."""
    parsed = parser().parse_args(arguments)
    from elman.tasks.text.pretrained.convert import convert

    lm = convert(parsed.source, parsed.out, tokenizer=parsed.tokenizer)
    config = lm.config
    about = {
        "out": parsed.out, "family": config.pretrained["family"], "layers": config.layers, "size": config.size,
        "symbols": lm.vocabulary.size, "parameters": lm.parameter_count,
    }  # fmt: skip
    if parsed.json:
        print_json(about)
    else:
        print(
            "{family}: {layers} layers of {size:,}, {symbols:,} symbols, {parameters:,} parameters, in {out}".format(
                **about
            )
        )
    return 0


def parser() -> argparse.ArgumentParser:
    """What it takes."""
    parser = argparse.ArgumentParser(
        prog="elman convert",
        description="Make a pretrained model, as others saved it, a model that every verb opens. No code of it is run, "
        "and nothing is downloaded.",
    )
    parser.add_argument(
        "source", metavar="SOURCE", help="a folder with config.json and model.safetensors, or the .pth of an RWKV-7"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to save it in, which must be new")
    parser.add_argument(
        "--tokenizer", metavar="FILE", help="its tokenizer.json or rwkv_vocab_v20230424.txt, if not beside it"
    )
    parser.add_argument("--json", action="store_true", help="print what it is as JSON")
    return parser
