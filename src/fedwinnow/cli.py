"""The command line: finds the command, parses its flags, and turns errors into messages and exit codes."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any, Protocol

from fedwinnow.errors import (
    COMMAND_LINE,
    DataError,
    FedwinnowError,
    FedwinnowWarning,
    UsageError,
    memory_in_words,
    unknown,
)
from fedwinnow.old_names import new_command, new_flags
from fedwinnow.version import __version__

# command -> (module and class, one line for the overview). The modules are imported only when needed.
COMMANDS = {
    "demo": ("fedwinnow.commands.demo:Demo", "the main job on embedded data, ending in something worth looking at"),
    "run": ("fedwinnow.commands.run:Run", "one experiment; --resume continues it, --rounds may be raised"),
    "audit": (
        "fedwinnow.commands.audit:Audit",
        "which labels are worth a look at each site, found without moving the data",
    ),
    "predict": ("fedwinnow.commands.predict:Predict", "the trained model asked about new samples"),
    "export": ("fedwinnow.commands.export:Export", "the trained model as a file for other programs, with a model card"),
    "evaluate": (
        "fedwinnow.commands.evaluate:Evaluate",
        "how good the trained model is on labelled samples, with a page",
    ),
    "review": ("fedwinnow.commands.review:Review", "the page where a person accepts or rejects suggestions"),
    "apply": (
        "fedwinnow.commands.apply:Apply",
        "corrected labels out, in the format of the data; --undo takes it back",
    ),
    "scene make": (
        "fedwinnow.commands.scene:SceneMake",
        "who holds what and which labels are wrong, frozen and hashed",
    ),
    "scene show": ("fedwinnow.commands.scene:SceneShow", "a scene in the terminal: class map and rates"),
    "scene draw": ("fedwinnow.commands.scene:SceneDraw", "a scene as pictures: bubbles, transitions, rates"),
    "scene export": ("fedwinnow.commands.scene:SceneExport", "arrays `client` and `given` for other programs"),
    "scene import": ("fedwinnow.commands.scene:SceneImport", "a scene that was made elsewhere"),
    "paper list": ("fedwinnow.commands.paper:PaperList", "the papers' tables as recipes, by name"),
    "paper show": ("fedwinnow.commands.paper:PaperShow", "a paper's table as it is printed; nothing is run"),
    "paper run": ("fedwinnow.commands.paper:PaperRun", "make a paper's table again, in full or as a miniature"),
    "paper table": (
        "fedwinnow.commands.paper:PaperTable",
        "a paper's table from its runs, the paper's numbers beside ours",
    ),
    "gain": ("fedwinnow.commands.gain:GainOfRun", "what the federation gives to each site, beside training alone"),
    "figure": ("fedwinnow.commands.figure:Figure", "any picture of the papers from run folders"),
    "detection": (
        "fedwinnow.commands.detection:Detection",
        "noisy clients of a run told apart by many mixtures, scored",
    ),
    "sweep": ("fedwinnow.commands.sweep:Sweep", "methods x scenes x seeds; skips what is done, resumes what is not"),
    "table": ("fedwinnow.commands.table:TableOfRuns", "runs side by side: mean, deviation, paired tests over seeds"),
    "board": (
        "fedwinnow.commands.board:BoardOfRuns",
        "one page of all runs in a folder: curves, filters, means, reports",
    ),
    "serve": ("fedwinnow.commands.serve:Serve", "the same run over a network: the coordinator"),
    "join": ("fedwinnow.commands.join:Join", "the same run over a network: a site, with its data or a scene's clients"),
    "ledger verify": ("fedwinnow.commands.ledger:LedgerVerify", "whether a site's ledger is whole and unchanged"),
    "certificates": ("fedwinnow.commands.certificates:Certificates", "keys for serve and join, for people without any"),
    "encode": ("fedwinnow.commands.encode:Encode", "the features that a frozen encoder makes of a data set, as files"),
    "schema": ("fedwinnow.commands.schema:Schema", "how a table becomes numbers, as a file for sites to share"),
    "data": ("fedwinnow.commands.catalogues:Data", "the data sources, with every option"),
    "partitions": ("fedwinnow.commands.catalogues:Partitions", "the partitions, with every option"),
    "noises": ("fedwinnow.commands.catalogues:Noises", "the noises (how wrong is each client), with every option"),
    "flips": ("fedwinnow.commands.catalogues:Flips", "the flips (what a wrong label becomes), with every option"),
    "models": ("fedwinnow.commands.catalogues:Models", "the models, with every option"),
    "encoders": ("fedwinnow.commands.catalogues:Encoders", "the frozen encoders, with every option"),
    "methods": ("fedwinnow.commands.methods:Methods", "the methods: needs, exposure, options, citation"),
    "losses": ("fedwinnow.commands.catalogues:Losses", "the losses, with every option"),
    "aggregators": (
        "fedwinnow.commands.catalogues:Aggregators",
        "the rules that make one model of many, with every option",
    ),
    "optimizers": ("fedwinnow.commands.catalogues:Optimizers", "the optimisers, with every option"),
    "judges": ("fedwinnow.commands.catalogues:Judges", "how an audit judges labels, with every option"),
    "configs": ("fedwinnow.commands.configs:Configs", "the papers' set-ups, for run --config NAME"),
    "doctor": ("fedwinnow.commands.doctor:Doctor", "checks the installation, data and device, says what to do"),
}


class Command(Protocol):
    """A command is a dataclass whose fields are its flags, with a `run` that returns the exit code."""

    def run(self) -> int: ...


def main(arguments: list[str] | None = None) -> None:
    """Run one command and end the process with its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    speak_any_letter()
    speaking = COMMAND_LINE.set(True)
    try:
        with plain_warnings(), memory_in_words():
            code = dispatch(words)
        sys.stdout.flush()
    except FedwinnowError as problem:
        code = report(problem, as_json="--json" in words)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    except BrokenPipeError:
        # The reader (head, less) has ended; that is not an error, and the rest need not be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as refusal:
        code = report(explain_refusal(refusal), as_json="--json" in words)
    finally:
        COMMAND_LINE.reset(speaking)
    raise SystemExit(code)


def speak_any_letter() -> None:
    """Print an escape where the terminal lacks a letter (blocks on Windows, bytes of a file name), not an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Print a FedwinnowWarning as a line on stderr, without the line of source that Python would add."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, FedwinnowWarning):
                print(f"warning: {message}", file=sys.stderr)
            else:
                usual(message, category, *place, **more)

        warnings.showwarning = show
        yield


def explain_refusal(refusal: OSError) -> FedwinnowError:
    """The error of the operating system as a message for the user."""
    place = f"{refusal.filename}: " if refusal.filename else ""
    reason = str(refusal.strerror or refusal)
    if isinstance(refusal, FileExistsError | NotADirectoryError):
        reason = "a file is in the place where a folder is needed"
    return DataError(f"{place}{reason}. Check that the path is right and that you may use it.")


def dispatch(words: list[str]) -> int:
    """Find the command that these words name and run it."""
    words = new_command(words)
    if len(words) > 1 and words[0] == "help":
        return dispatch([*words[1:], "--help"])
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if words[0] == "--version":
        print(f"fedwinnow {__version__}")
        return 0
    name = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]
    if name not in COMMANDS:
        return explain_unknown(words)
    module, _, class_name = COMMANDS[name][0].partition(":")
    command_class = getattr(importlib.import_module(module), class_name)
    command = parse(command_class, name, words[len(name.split()) :])
    return command.run()


def parse(command_class: type[Command], name: str, flags: list[str]) -> Command:
    """Turn flags into a command; the defaults come from a config file if the flags name one."""
    import dataclasses

    import tyro

    from fedwinnow.flags import check_flags, in_our_words, keep_options, with_config, with_values

    flags = new_flags(with_values(flags), {field.name for field in dataclasses.fields(command_class)})  # type: ignore[arg-type]
    default, flags = with_config(command_class, flags)
    check_flags(command_class, flags)
    with in_our_words():
        made: Command = tyro.cli(
            command_class,
            prog=f"fedwinnow {name}",
            args=flags,
            default=default,
            config=(tyro.conf.FlagCreatePairsOff,),
        )
    return made if default is None else keep_options(default, made)


def overview() -> str:
    """What `fedwinnow --help` prints."""
    lines = [
        f"fedwinnow {__version__}: federated learning with noisy labels",
        "",
        "usage: fedwinnow COMMAND [flags]",
        "",
    ]
    lines += [f"  {name:<14} {text}" for name, (_, text) in COMMANDS.items()]
    lines += ["", "fedwinnow COMMAND --help explains every flag. --json on any command prints for machines."]
    lines += ["Exit codes: 0 ok, 2 wrong use, 3 data problem, 4 run failed."]
    return "\n".join(lines)


def explain_unknown(words: list[str]) -> int:
    """Handle the first word of a group alone (`fedwinnow scene`), or a command that does not exist."""
    group = [name for name in COMMANDS if name.startswith(words[0] + " ")]
    if group and len(words) > 1 and words[1] in ("-h", "--help"):
        print("\n".join(f"  fedwinnow {name:<14} {COMMANDS[name][1]}" for name in group))
        return 0
    if group and (len(words) == 1 or words[1].startswith("-")):
        raise UsageError(f"'fedwinnow {words[0]}' needs a second word; allowed: {', '.join(group)}.")
    if group:
        raise unknown("command", " ".join(words[:2]), group)
    raise unknown("command", words[0], {name.split()[0] for name in COMMANDS})


def report(problem: FedwinnowError, *, as_json: bool) -> int:
    """Print an error, with --json also as JSON, and return its exit code."""
    if as_json:
        print(json.dumps({"error": str(problem), "exit_code": problem.exit_code}))
    print(f"error: {problem}", file=sys.stderr)
    return problem.exit_code
