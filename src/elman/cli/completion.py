"""elman completion: print a script with which bash, zsh or fish completes commands.

The script knows no words. On TAB it passes the command line up to the cursor to `elman completion SHELL --line LINE`,
which prints what may come next, a line each. It ends with 1 if nothing can be proposed, as for a number; if it prints
nothing and ends with 0, the shell proposes files. The words are those of help (`described`), so Torch is not imported.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

from elman.cli import VERBS, model_verb
from elman.cli.described import Argument, Described, arguments_of, described
from elman.cli.settings import DEFAULT, parse_named
from elman.errors import InputError
from elman.files.config import NAME, Setting
from elman.options import parse_json

SCRIPTS = {
    "bash": r"""_elman() {
    local line="${COMP_LINE:0:COMP_POINT}" breaks="${COMP_WORDBREAKS//[^=:]/}" found word cut=""
    found=$("${COMP_WORDS[0]/#\~/$HOME}" completion bash --line "$line" 2>/dev/null) || compopt +o default 2>/dev/null
    word="${line##*[[:space:]]}"
    [[ $breaks ]] && cut="${word%"${word##*[$breaks]}"}"  # bash replaces what follows the last of these
    COMPREPLY=()
    [[ $found ]] && while IFS= read -r word; do COMPREPLY+=("${word#"$cut"}"); done <<< "$found"
}
complete -o default -F _elman elman
""",
    "zsh": r"""#compdef elman
_elman() {
    local found code
    local -a lines
    found=$("${words[1]/#\~/$HOME}" completion zsh --line "${(j: :)words[1,CURRENT-1]} $PREFIX" 2>/dev/null)
    code=$?
    lines=("${(f)found}")
    if [[ -n $found ]]; then
        _describe elman lines
    elif (( code == 0 )); then
        [[ $PREFIX == --*=* ]] && compset -P '*='
        _files
    fi
}
if [[ $funcstack[1] == _elman ]]; then _elman "$@"; else compdef _elman elman; fi
""",
    "fish": r"""function __elman_complete
    set -l words (commandline -opc)
    set -l found ($words[1] completion fish --line (commandline -cp | string collect) 2>/dev/null)
    and test -z "$found"
    and __fish_complete_path (commandline -ct)
    test -n "$found"
    and printf '%s\n' $found
end
complete -c elman -f -a '(__elman_complete)'
""",
}
HOW = """\
bash: put this line into ~/.bashrc

    eval "$(elman completion bash)"

zsh: put this line into ~/.zshrc, after compinit

    eval "$(elman completion zsh)"

fish: run this once

    elman completion fish > ~/.config/fish/completions/elman.fish

The scripts need no update: what they propose, the installed version says."""
EVERYWHERE = (  # `cli.flags` pops them
    Argument("--import", "a module of your own to import first", "MODULE"),
    Argument("--threads", "how many threads compute", "number"),
)
NOT_FILES = ("number", "mapping", "MODULE")
RUN_SETTINGS = ("out", "init_from")
TASK = re.compile(r"^task: *[\"']?(\w+)", re.MULTILINE)  # in a config: to parse all of it would take half of the time
TO_ESCAPE = re.compile(r"([^\w./:=,@%+~-])")
Words = list[tuple[str, str]]  # what may come next, and what each means


def run(arguments: Sequence[str]) -> int:
    """Print the script of a shell; or, if such a script asks, what may come next."""
    parsed = parser().parse_args(arguments)
    if parsed.line is None:
        print(SCRIPTS[parsed.shell], end="")
        return 0
    words = split(parsed.line)
    found = complete(words[1:-1], words[-1])
    for word, meaning in found or ():
        print(_write(parsed.shell, word, meaning))
    return 1 if found is None else 0


def parser() -> argparse.ArgumentParser:
    """What it takes."""
    parser = argparse.ArgumentParser(
        prog="elman completion", description="Print a script with which a shell completes commands of Elman.",
        epilog=HOW, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("shell", choices=SCRIPTS, help="the shell that you use")
    parser.add_argument("--line", help=argparse.SUPPRESS)
    return parser


def split(line: str) -> list[str]:
    """The words of a command line up to the cursor; the last one, which may be empty, is the one to complete.

    >>> split("elman train --out "), split("elman predict 'my ru")
    (['elman', 'train', '--out', ''], ['elman', 'predict', 'my ru'])
    """
    for closing in ("", "'", '"', "\\"):
        try:
            words = shlex.split(line + closing)
        except ValueError:  # a quotation that is still open
            continue
        return [*words, ""] if not closing and (not line or line[-1].isspace()) else words
    return ["", ""]


def complete(words: Sequence[str], current: str) -> Words | None:
    """What may stand where `current` is begun, after `words`. Nothing means a file; None that there are no proposals.

    >>> complete(["train", "--task", "tree", "--model.cell"], "bin")
    [('binary_tree_lstm', '')]
    """
    if not words:
        return _beginning(current, [*VERBS.items(), ("--help", "list the verbs"), ("--version", "print the version")])
    verb, *rest = words
    if verb not in VERBS:
        return None
    known = [*_arguments(verb, rest), *EVERYWHERE]
    flags = {argument.flag: argument for argument in known if argument.flag}
    flag, equals, value = current.partition("=")
    if equals and flag in flags:
        found = _values(flags[flag], value)
        return found and [(f"{flag}={word}", meaning) for word, meaning in found]
    due, place = _due(rest, flags)
    positional = [argument for argument in known if not argument.flag]
    if current.startswith("-") or (due is None and not positional):
        return _beginning(current, [(flag, argument.help) for flag, argument in flags.items()]) or None
    return _values(due or positional[min(place, len(positional) - 1)], current)


def _due(words: Sequence[str], flags: dict[str, Argument]) -> tuple[Argument | None, int]:
    """The flag whose value is due after some words, if one is; and how many words belong to no flag."""
    due, place = None, 0
    for word in words:
        if word.startswith("--"):
            argument = flags.get(word)
            due = argument if argument and argument.takes else None
        elif due is None:
            place += 1
        elif not due.several:
            due = None
    return due, place


def _values(argument: Argument, current: str) -> Words | None:
    if argument.choices:
        return _beginning(current, [(word, "") for word in argument.choices]) or None
    if argument.takes in NOT_FILES:
        return None
    if argument.takes == "TASK":
        return _beginning(current, [(name, task.title) for name, task in described().items()]) or None
    if argument.takes == "CELL":
        cells = next(one for one in _settings(described()[DEFAULT].settings) if one.flag == "--model.cell")
        return _values(cells, current)
    return _beginning(current, [(run, "") for run in _runs()]) if argument.takes == "RUN" else []


def _beginning(current: str, words: Iterable[tuple[str, str]]) -> Words:
    return [(word, meaning) for word, meaning in words if word.startswith(current)]


def _runs() -> list[str]:
    """The runs where they are by default; those elsewhere are found as any folder is."""
    return sorted(str(path.parent) for path in Path("runs").glob(f"*/{NAME}"))


def _arguments(verb: str, words: Sequence[str]) -> Sequence[Argument]:
    """What a verb takes, after some words: that depends on the task, and for a model on that of its run."""
    if verb in ("train", "search"):
        task = described().get(_task_to_train(words)) or described()[DEFAULT]
        config = Argument("--config", "a YAML file of settings; flags override it", "FILE")
        own = task.verbs["search"] if verb == "search" else ()
        return [*own, config, *(one for one in _settings(task.settings) if one.flag not in {a.flag for a in own})]
    tasks = [task for task in described().values() if verb in task.verbs]
    if not tasks:
        return arguments_of(import_module(f"elman.cli.{verb}").parser())
    run = model_verb.run_of(words)
    named = described().get(_task_of_run(Path(run))) if run else None
    return list(_together(verb, [named] if named and verb in named.verbs else tasks))


def _together(verb: str, tasks: Sequence[Described]) -> Iterator[Argument]:
    """The arguments of a verb for models of some tasks, each once."""
    seen = set()
    for task in tasks:
        for argument in task.verbs[verb]:
            name = argument.flag or argument.takes
            if name not in seen:
                seen.add(name)
                yield argument


def _task_to_train(words: Sequence[str]) -> str:
    try:
        named = parse_named(words)
    except InputError:  # a flag without its value, which may be what is completed
        return DEFAULT
    configs = [Path(name) for name in named.config]
    return str(named.task or "") or _task_in(*configs) or _task_in(Path(named.out or "", NAME)) or DEFAULT


def _task_of_run(run: Path) -> str:
    saved = [folder / "model.json" for folder in (run / "best", run / "last", run)]
    path = next((path for path in saved if path.is_file()), None)
    if task := _task_in(run / NAME):
        return task
    return str(parse_json(path.read_text(encoding="utf-8")).get("task", "")) if path else ""


def _task_in(*configs: Path) -> str:
    """The task that the last of some configs names."""
    found = [match[1] for path in configs if path.is_file() and (match := TASK.search(path.read_text("utf-8")))]
    return found[-1] if found else ""


def _settings(settings: Sequence[Setting], section: str = "") -> Iterator[Argument]:
    """The flags of settings."""
    for setting in settings:
        if setting.parts:
            yield from _settings(setting.parts, f"{section}{setting.name}.")
        else:
            choices = setting.choices or (("true", "false") if isinstance(setting.value, bool) else ())
            several = isinstance(setting.value, list)
            yield Argument(f"--{section}{setting.name}", setting.meaning, _takes(setting), choices, several)


def _takes(setting: Setting) -> str:
    value = setting.value[0] if isinstance(setting.value, list) and setting.value else setting.value
    if isinstance(value, int | float | dict):
        return "mapping" if isinstance(value, dict) else "number"
    return "RUN" if setting.name in RUN_SETTINGS else setting.name.upper()


def _write(shell: str, word: str, meaning: str) -> str:
    """A word as the script of a shell reads it: fish and zsh show what it means."""
    meaning = " ".join(meaning.split())
    if shell == "fish":
        return f"{word}\t{meaning}"
    if shell == "zsh":
        return word.replace(":", r"\:") + (f":{meaning}" if meaning else "")
    return TO_ESCAPE.sub(r"\\\1", word)
