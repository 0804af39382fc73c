"""The text of a C file: the step of a program, the functions of runtime.c that it calls, and its weights."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from string import Template

import numpy as np
from numpy.typing import NDArray

from elman.export.c.builder import CProgram
from elman.export.c.calls import Argument, Call, Part
from elman.export.c.weights import TYPES, Place
from elman.kernels.builder import Slot

TEXT = Path(__file__).parent / "text"
WIDTH = 120  # of a line
# What a paragraph of runtime.c is called by the others.
NAMES = re.compile(r"^#define (\w+)|^(?:static )?(?:inline )?\w+ \**(\w+)\(|^(?:EACH|COMBINE)\((\w+),|^} (\w+);", re.M)


@dataclass(frozen=True)
class Module:
    """A program with all that its file says of it."""

    name: str  # what its functions and files are called by
    program: CProgram
    y: Slot
    start: bytes  # the state before the first input
    fingerprint: str
    title: str
    chooses: bool = False  # y are logits of the symbols that a step is given

    def header(self) -> str:
        """The header: what there is to call, and how large it is."""
        reads = self.program.symbols > 0
        named = {"name": self.name, "UPPER": self.name.upper()}
        room = self.y.width + (self.y.width + 1) // 2
        choice = "\n" + template("choice.h").substitute(named, room=room) if self.chooses else ""
        return template("model.h").substitute(
            named, about=f"{self.title}, written by elman export.", fingerprint=self.fingerprint,
            state_bytes=len(self.start), stack=4 * self.rooms()[1] + 2048, output=self.y.width,
            IN="SYMBOLS" if reads else "INPUT", input=self.program.symbols or self.program.given,
            results="int" if reads else "void", argument="int32_t symbol" if reads else "const float *x",
            arguments="const int32_t *symbols" if reads else "const float *x", choice=choice,
            takes="A step of a symbol that there is not gives -1 and changes nothing." if reads else "",
        )  # fmt: skip

    def source(self) -> str:
        """The whole C file."""
        files = [runtime(self.functions())]
        if self.chooses:
            files.append(self.named(text("choice.c")))
        about = f"/* {self.title}, written by elman export: {self.name}.h says what there is. */"
        includes = f'#include "{self.name}.h"\n\n#include <math.h>\n#include <string.h>\n'
        return "\n".join([about, includes, text("preamble.h"), *files, self.body()])

    def functions(self) -> set[str]:
        """What it calls of runtime.c."""
        called = {call.function for call in self.program.calls}
        return called | ({"FMA_DOUBLE"} if self.chooses else set()) | (set() if self._in_place() else {"copy"})

    def body(self) -> str:
        """The functions of this model, and its weights behind them."""
        arrays = {self.weights(name): numbers for name, numbers in self.program.weights.arrays()}
        starts = any(self.start)
        if starts:
            arrays["uint32_t", f"{self.name}_start"] = np.frombuffer(self.start, np.uint32)
        declared = "".join(f"static const {kind} {name}[{len(v)}];\n" for (kind, name), v in arrays.items())
        defined = "\n".join(_array(kind, name, numbers) for (kind, name), numbers in arrays.items())
        reset = f"memcpy(state, {self.name}_start, sizeof {self.name}_start)" if starts else (
            f"memset(state, 0, {len(self.start)})" if self.start else "(void)state"
        )  # fmt: skip
        return "\n".join([
            declared,
            f"size_t {self.name}_state_bytes(void) {{ return {self.name.upper()}_STATE_BYTES; }}\n",
            f"void {self.name}_reset(void *state) {{ {reset}; }}\n",
            self.step(), self.scan(), defined,
        ])  # fmt: skip

    def step(self) -> str:
        """The step: its calls, one behind the other."""
        places, room = self.rooms()
        reads = self.program.symbols > 0
        calls = [self._call(call, places) for call in self.program.calls]
        if not self._in_place():
            calls.append(f"copy({self.y.width}, {self._at(self.y, 0, places)}, y);")
        body = "\n".join(calls)
        lines = ["float *const s = state;"] if re.search(r"\bs \+", body) else ["(void)state;"]
        lines += [f"float room[{room}];"] if re.search(r"\broom \+", body) else []
        if not reads and not re.search(r"\bx\b", body):
            lines.append("(void)x;")
        if reads:
            lines.append(f"if (symbol < 0 || symbol >= {self.program.symbols}) return -1;")
            calls.append("return 0;")
        results, argument = ("int", "int32_t symbol") if reads else ("void", "const float *x")
        declared = sorted(lines, key=lambda line: line.startswith(("(void)", "if")))
        inside = "\n".join(f"  {line}" for line in [*declared, *calls])
        return f"{results} {self.name}_step(void *state, {argument}, float *y) {{\n{inside}\n}}\n"

    def scan(self) -> str:
        """Many steps."""
        if self.program.symbols:
            return self.named(
                "int NAME_scan(void *state, const int32_t *symbols, size_t steps, float *y) {\n  size_t t;\n"
                "  for (t = 0; t < steps; ++t)\n"
                "    if (NAME_step(state, symbols[t], y + t * UPPER_OUTPUT)) return -1;\n  return 0;\n}\n"
            )
        return self.named(
            "void NAME_scan(void *state, const float *x, size_t steps, float *y) {\n  size_t t;\n"
            "  for (t = 0; t < steps; ++t) NAME_step(state, x + t * UPPER_INPUT, y + t * UPPER_OUTPUT);\n}\n"
        )

    def named(self, text: str) -> str:
        """A text in which the model is called NAME."""
        return re.sub(r"\bNAME(?=_)", self.name, re.sub(r"\bUPPER(?=_)", self.name.upper(), text))

    def weights(self, array: str) -> tuple[str, str]:
        """The type and the name of one of the arrays."""
        return TYPES[array], f"{self.name}_{array}"

    def rooms(self) -> tuple[list[int], int]:
        """Where each room lies, those that are not needed at the same time in one place; and how large all are."""
        ends: dict[int, int] = {}
        begins: dict[int, int] = {}
        for i, call in enumerate(self.program.calls):
            for slot in call.slots():
                room = self.program.stretches[slot.number].room
                begins.setdefault(room, i)
                ends[room] = i
        kept = self.program.stretches[self.y.number].room
        ends[kept] = len(self.program.calls)
        places, size, taken = [0] * len(self.program.rooms), 0, list[tuple[int, int, int]]()  # first, behind, last call
        for room in sorted((room for room in begins if room >= 0), key=lambda room: begins[room]):
            if room == kept and self._in_place():
                continue
            taken = [part for part in taken if part[2] >= begins[room]]
            first, width = 0, self.program.rooms[room]
            for left, right, _ in sorted(taken):
                if first + width <= left:
                    break
                first = max(first, right)
            taken.append((first, first + width, ends[room]))
            places[room], size = first, max(size, first + width)
        return places, size

    def _in_place(self) -> bool:
        """Whether what a step gives is made where the caller wants it."""
        at = self.program.stretches[self.y.number]
        return at.room >= 0 and at.width == self.program.rooms[at.room]

    def _call(self, call: Call, places: list[int]) -> str:
        return f"{call.function}({', '.join(self._argument(argument, places) for argument in call.arguments)});"

    def _argument(self, argument: Argument, places: list[int]) -> str:
        if argument is None:
            return "NULL"
        if isinstance(argument, Slot):
            return self._at(argument, 0, places)
        if isinstance(argument, Part):
            return self._at(argument.slot, argument.first, places)
        if isinstance(argument, Place):
            return f"{self.name}_{argument.array} + {argument.at}"
        return argument if isinstance(argument, str) else repr(argument)

    def _at(self, slot: Slot, first: int, places: list[int]) -> str:
        at = self.program.stretches[slot.number]
        first += at.first
        if at.home == "room":
            kept = at.room == self.program.stretches[self.y.number].room and self._in_place()
            return f"y + {first}" if kept else f"room + {places[at.room] + first}"
        home = {"state": "s", "x": "x"}.get(at.home, f"{self.name}_{at.home}")
        return f"{home} + {first}"


def text(file: str) -> str:
    """What a file of ours has."""
    return (TEXT / file).read_text(encoding="utf-8")


def template(file: str) -> Template:
    """The same with $names in it."""
    return Template(text(file))


def runtime(functions: Iterable[str]) -> str:
    """The paragraphs of runtime.c that these functions need, in their order."""
    paragraphs = text("runtime.c").strip().split("\n\n")
    names = [{name for found in NAMES.findall(paragraph) for name in found if name} for paragraph in paragraphs]
    wanted, needed = set(functions), set[int]()
    while wanted:
        found = {i for i, own in enumerate(names) if own & wanted} - needed
        needed |= found
        wanted = {word for i in found for word in re.findall(r"[A-Z]\w+|\w+(?=\()", _code(paragraphs[i]))}
    return "\n\n".join(paragraphs[i] for i in sorted(needed)) + "\n"


def _code(paragraph: str) -> str:
    return re.sub(r"/\*.*?\*/", "", paragraph, flags=re.S)


def _array(kind: str, name: str, numbers: NDArray[np.generic]) -> str:
    """A constant array, each float in as many digits as tell it from every other."""
    suffix = "u" if kind == "uint32_t" else ""
    words = [_float(v) if kind == "float" else f"{v}{suffix}" for v in numbers]
    lines, line = list[str](), ""
    for word in words:
        if len(line) + len(word) + 2 > WIDTH:
            lines.append(line.rstrip())
            line = ""
        line += f"{word}, "
    inside = "\n".join(f"  {line}" for line in [*lines, line.rstrip(", ")])
    return f"static const {kind} {name}[{len(numbers)}] = {{\n{inside}\n}};\n"


def _float(v: np.generic) -> str:
    text = str(v)
    return {"nan": "NAN", "inf": "INFINITY", "-inf": "-INFINITY"}.get(text, text + "f")
