"""The catalogue: every part of every family, read from the source files without importing them.

A family is a folder; a part is a class in it with a literal `name`. Because the text is read and not imported, `--help`
and the catalogue commands do not load torch, and a new part needs no entry in a table.
"""

from __future__ import annotations

import ast
import dataclasses
import dis
import importlib
import inspect
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from fedwinnow.errors import UsageError, unknown
from fedwinnow.old_names import GROUPS, warn_of_old_name
from fedwinnow.options import Part, build, parse_spec

ROOT = Path(__file__).parent

# family -> (what one member is called, its folder or file, the entry point group of third parties)
FAMILIES = {
    "data": ("data source", "data/sources", "fedwinnow.data"),
    "partitions": ("partition", "scene/partitions", "fedwinnow.partitions"),
    "noises": ("noise", "scene/noises", "fedwinnow.noises"),
    "flips": ("flip", "scene/flips", "fedwinnow.flips"),
    "models": ("model", "models", "fedwinnow.models"),
    "encoders": ("encoder", "encoders", "fedwinnow.encoders"),
    "methods": ("method", "methods", "fedwinnow.methods"),
    "losses": ("loss", "mathematics/losses.py", "fedwinnow.losses"),
    "aggregators": ("aggregator", "mathematics/aggregators.py", "fedwinnow.aggregators"),
    "optimizers": ("optimizer", "mathematics/optimizers.py", "fedwinnow.optimizers"),
    "judges": ("judge", "auditing/judges.py", "fedwinnow.judges"),
}

# family -> the file of its base class, where that class has options which every member inherits
BASES = {
    "data": "data/source.py",
    "partitions": "scene/partition.py",
    "noises": "scene/noise.py",
    "methods": "federation/method.py",
    "judges": "federation/judge.py",
}

DESCRIBED = ("symbol", "source", "presets")  # shown for an option besides its default and its sentence


@dataclasses.dataclass(frozen=True)
class OptionText:
    """One option as the catalogue prints it."""

    name: str
    type: str
    default: str
    sentence: str
    symbol: str = ""
    source: str = ""
    presets: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Entry:
    """One part as the catalogue prints it, and where to import it from."""

    family: str
    name: str
    summary: str
    details: str
    options: tuple[OptionText, ...]
    module: str
    class_name: str
    facts: dict[str, Any]  # literal class attributes other than the name, for example a citation

    def load(self) -> type[Part]:
        """Import the class; this may import torch."""
        part: type[Part] = getattr(importlib.import_module(self.module), self.class_name)
        return part


@cache
def entries(family: str) -> dict[str, Entry]:
    """All parts of a family by name, those of fedwinnow and those of installed packages."""
    group = FAMILIES[family][2]
    found = {entry.name: entry for entry in read_files(family, own_files(family))}
    points = list(entry_points(group=group))
    for point in entry_points(group=GROUPS[group]) if group in GROUPS else ():
        warn_of_old_name(f"the entry point group {GROUPS[group]}", group)
        points.append(point)
    for point in points:
        found.setdefault(point.name, from_entry_point(family, point))
    return dict(sorted(found.items()))


def module_of(path: Path) -> str:
    """The dotted name of a file of fedwinnow."""
    return ".".join(["fedwinnow", *path.relative_to(ROOT).with_suffix("").parts])


def own_files(family: str) -> dict[Path, str]:
    """The files of a family's members; the file of its base class comes first."""
    place = ROOT / FAMILIES[family][1]
    base = [ROOT / BASES[family]] if family in BASES else []
    return {path: module_of(path) for path in [*base, *([place] if place.suffix else sorted(place.glob("*.py")))]}


def in_file(family: str, path: Path) -> Entry:
    """The one part in a user's own file, which is read and not imported."""
    kind = FAMILIES[family][0]
    if not path.is_file():
        raise UsageError(f"{kind} {path}: there is no such file.")
    try:
        known = list(read_files(family, own_files(family) | {path: str(path)}))
    except (SyntaxError, ValueError, RecursionError) as problem:
        raise UsageError(f"{kind} {path}: the file is not Python that a part can be read from: {problem}.") from None
    found = [entry for entry in known if entry.module == str(path)]
    if len(found) != 1:
        names = ", ".join(entry.class_name for entry in found) or "none"
        raise UsageError(f"{kind} {path}: the file must have one class with a literal `name`; found: {names}.")
    return found[0]


def find(family: str, name: str) -> Entry:
    """The part of this name, or an error that lists the names and guesses."""
    kind, known = FAMILIES[family][0], entries(family)
    if name not in known:
        raise unknown(kind, name, known)
    return known[name]


def make(family: str, spec: str | dict[str, Any] | Part) -> Part:
    """A part from `name:key=value`, from a TOML table with `kind`, or the part itself."""
    if isinstance(spec, Part):
        return spec
    name, values = split(family, spec)
    return build(FAMILIES[family][0], find(family, name).load(), values)


def split(family: str, spec: str | dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and the raw values of a spec, from a text or a table."""
    if isinstance(spec, str):
        name, texts = parse_spec(spec)
        return name, dict(texts)
    kind = FAMILIES[family][0]
    if not isinstance(spec, dict) or not isinstance(spec.get("kind"), str):
        raise UsageError(f"{spec!r} was given as {kind}; allowed: a text like name:key=value, or a table with a kind.")
    return spec["kind"], {key: value for key, value in spec.items() if key != "kind"}


def from_entry_point(family: str, point: EntryPoint) -> Entry:
    """A part of an installed package; its module is imported, because that is the only sure way to find its file."""
    try:
        part = point.load()
        origin = sys.modules[part.__module__].__file__
    except Exception as problem:  # the import of another package can raise anything
        raise UsageError(
            f"the installed {FAMILIES[family][0]} '{point.name}' ({point.value}) cannot be imported: "
            f"{type(problem).__name__}: {problem}. Repair or uninstall the package that brings it."
        ) from problem
    known = read_files(family, own_files(family) | {Path(str(origin)): part.__module__})
    matching = [entry for entry in known if (entry.module, entry.class_name) == (part.__module__, part.__name__)]
    if not matching:
        raise UsageError(f"the installed {FAMILIES[family][0]} '{point.name}' ({point.value}) has no literal `name`.")
    return dataclasses.replace(matching[0], name=point.name)


# --- reading source text -------------------------------------------------------------------------------------------

Classes = dict[str, tuple[ast.ClassDef, str]]  # class name -> its source and its module


def read_files(family: str, files: dict[Path, str]) -> Iterator[Entry]:
    """Every part in these files; options and facts are inherited from base classes in the same files."""
    classes: Classes = {}
    for path, module in files.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                classes[node.name] = (node, module)
    for class_name, (node, module) in classes.items():
        name = literal_attributes(node, classes).get("name")
        if isinstance(name, str):
            summary, _, details = (ast.get_docstring(node) or "").partition("\n\n")
            yield Entry(
                family=family,
                name=name,
                summary=" ".join(summary.split()),
                details=details.strip(),
                options=tuple(shown_options(family, node, classes)),
                module=module,
                class_name=class_name,
                facts={key: value for key, value in facts_of(node, classes).items() if key != "name"},
            )


def bases_of(node: ast.ClassDef, classes: Classes) -> list[ast.ClassDef]:
    """The base classes whose source is known, the nearest last."""
    names = [last_name(base) for base in node.bases]
    return [classes[name][0] for name in reversed(names) if name in classes and classes[name][0] is not node]


def last_name(expression: ast.expr) -> str:
    """`Method` for both `Method` and `fedwinnow.Method`."""
    return expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")


def facts_of(node: ast.ClassDef, classes: Classes) -> dict[str, Any]:
    """The literal class attributes of a class, those of its bases first."""
    found: dict[str, Any] = {}
    for base in bases_of(node, classes):
        found |= facts_of(base, classes)
    found |= literal_attributes(node, classes)
    return {key: value for key, value in found.items() if value is not None}


def literal_attributes(node: ast.ClassDef, classes: Classes) -> dict[str, Any]:
    """Class attributes whose value is a literal, such as `name`, or a literal added to what a base class says."""
    found = {}
    target: ast.expr
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and statement.value is not None:
            target, value = statement.target, statement.value
        elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], statement.value
        else:
            continue
        if isinstance(target, ast.Name) and not is_option(value):
            # None: computed in a way that source text does not tell, so what a base class says does not hold either
            found[target.id] = evaluate(value, classes)
    return found


def is_option(value: ast.expr) -> bool:
    """Whether a field was made with `option(...)`."""
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "option"


def evaluate(value: ast.expr, classes: Classes) -> Any:
    """A literal, `Base.attribute`, or such things joined with |, + or **; None for anything else."""
    if isinstance(value, ast.Attribute) and last_name(value.value) in classes:
        return facts_of(classes[last_name(value.value)][0], classes).get(value.attr)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr | ast.Add):
        left, right = evaluate(value.left, classes), evaluate(value.right, classes)
        if isinstance(left, dict) and isinstance(right, dict):
            return left | right
        return left + right if isinstance(left, tuple) and isinstance(right, tuple) else None
    if isinstance(value, ast.Dict) and None in value.keys:
        pieces = [
            evaluate(item if key is None else ast.Dict([key], [item]), classes)
            for key, item in zip(value.keys, value.values, strict=True)
        ]
        return None if None in pieces else {key: item for piece in pieces for key, item in piece.items()}
    try:
        return ast.literal_eval(value)
    except (ValueError, TypeError):
        return None


def shown_options(family: str, node: ast.ClassDef, classes: Classes) -> Iterator[OptionText]:
    """The options of a class without those that have no effect."""
    ineffective: tuple[str, ...] = ()
    if family == "methods" and (lineage := [*lineage_of(node, classes)])[-1] is classes["Method"][0]:
        ineffective = unused([said_in_text(one) for one in lineage], facts_of(node, classes))
    yield from (text for text in options_of(node, classes).values() if text.name not in ineffective)


def lineage_of(node: ast.ClassDef, classes: Classes) -> Iterator[ast.ClassDef]:
    """A class and its bases, the nearest first."""
    yield node
    for base in reversed(bases_of(node, classes)):
        yield from lineage_of(base, classes)


def options_of(node: ast.ClassDef, classes: Classes) -> dict[str, OptionText]:
    """The options of a class, those of its bases first; a class may redeclare one."""
    found: dict[str, OptionText] = {}
    for base in bases_of(node, classes):
        found |= options_of(base, classes)
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = option_text(statement)
            if text is not None:
                found[text.name] = text
    return found


def option_text(statement: ast.AnnAssign) -> OptionText | None:
    """The option in `field: type = option(default, "sentence", ...)`; None for any other statement."""
    call = statement.value
    if not isinstance(call, ast.Call) or not is_option(call):
        return None
    if len(call.args) != 2:
        raise ValueError(f'line {call.lineno}: an option is written option(default, "Sentence.", ...)')
    default, sentence = ast.unparse(call.args[0]), ast.literal_eval(call.args[1])
    extra = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg in DESCRIBED}
    assert isinstance(statement.target, ast.Name)
    return OptionText(
        name=statement.target.id,
        type=type_text(statement.annotation),
        default="required" if default == "..." else default.strip("'\""),
        sentence=sentence,
        **extra,
    )


def type_text(annotation: ast.expr) -> str:
    """A type in words: the allowed words of a Literal, or a plain word."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        inner = annotation.slice
        words = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        return " | ".join(str(ast.literal_eval(word)) for word in words)
    if isinstance(annotation, ast.BinOp):
        return f"{type_text(annotation.left)} | {type_text(annotation.right)}"
    plain = {
        "int": "whole number",
        "float": "number",
        "bool": "true | false",
        "str": "text",
        "Any": "text",
        "Path": "path",
    }
    word = ast.unparse(annotation)
    return plain.get(word, word.lower())


# Which options have no effect: a method may never use an option that every method has. This is found by following the
# functions of a method from those that a run calls to those that they name.
SHARED = ("loss", "mixup", "aggregate")  # options of every method that some methods never use
CALLED = ("start", "exchanges", "models", "joined", "send", "load", "logits", "verdict", "judge", "predict", "needed")
ASKED = "train"  # the function that a round calls on a client where a method names no other
ANSWERS = 3  # parameters of a function that runs on a client: self, client, got


@dataclass(frozen=True)
class Said:
    """The names that one function uses."""

    attributes: frozenset[str]  # of self, or of anything else
    texts: frozenset[str]  # a round names the function that runs on a client by a text
    parameters: int

    @property
    def calls_base(self) -> bool:
        """Whether it may call the function that it overrides."""
        return "super" in self.attributes


Lineage = Sequence[dict[str, Said]]  # the functions of a class and of its bases, the nearest first, `Method` last


def unused(lineage: Lineage, facts: dict[str, Any]) -> tuple[str, ...]:
    """The options of every method that this one never uses."""
    named = reached(lineage) | set(facts.get("uses") or ())
    found = [name for name in SHARED if name not in named or (name == "aggregate" and facts.get("own_aggregation"))]
    return (*found, "steady") if facts.get("own_models") else tuple(found)


def reached(lineage: Lineage) -> set[str]:
    """All attributes that are used by functions that a run can call."""
    own, seen, named = lineage[:-1], set[tuple[int, str]](), set[str]()
    answers = {name for functions in own for name, said in functions.items() if said.parameters == ANSWERS}
    asked = follow(lineage, [*CALLED, *answers], seen, named)
    if not asked and place_of(lineage, ASKED) is not None:  # no text names a function, so the usual one is called
        follow(lineage, [ASKED], seen, named)
    return named


def follow(lineage: Lineage, roots: Iterable[str], seen: set[tuple[int, str]], named: set[str]) -> bool:
    """Go from functions to those that they name; true if a text names one of them."""
    waiting = [(place, name) for name in roots if (place := place_of(lineage, name)) is not None]
    by_text = False
    while waiting:
        place, name = waiting.pop()
        if (place, name) in seen:
            continue
        seen.add((place, name))
        said = lineage[place][name]
        named |= said.attributes
        questions = {text for text in said.texts if place_of(lineage, text) is not None}
        by_text |= bool(questions)
        for other in said.attributes | questions:
            starts = (0, place + 1) if said.calls_base else (0,)
            waiting += [(at, other) for start in starts if (at := place_of(lineage, other, start)) is not None]
    return by_text


def place_of(lineage: Lineage, name: str, start: int = 0) -> int | None:
    """The position of the nearest class, from `start` on, that has a function of this name.

    A class with another `objective` does not inherit `by_hand`, which is the form of the one before.
    """
    ending = {name, "objective"} if name == "by_hand" else {name}
    nearest = next((place for place in range(start, len(lineage)) if ending & lineage[place].keys()), None)
    return nearest if nearest is not None and name in lineage[nearest] else None


# --- from source text ----------------------------------------------------------------------------------------------


def said_in_text(node: ast.ClassDef) -> dict[str, Said]:
    """The names that the functions of a class use, from its source text."""
    return {function.name: of_text(function) for function in node.body if isinstance(function, ast.FunctionDef)}


def of_text(function: ast.FunctionDef) -> Said:
    """The names that one function uses."""
    inside = [node for statement in function.body for node in ast.walk(statement)]
    attributes = {node.attr for node in inside if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    attributes |= {"super" for node in inside if isinstance(node, ast.Name) and node.id == "super"}
    texts = {node.value for node in inside if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    arguments = function.args
    return Said(frozenset(attributes), frozenset(texts), len(arguments.posonlyargs) + len(arguments.args))


# --- from compiled code --------------------------------------------------------------------------------------------


def said_in_code(part: type) -> dict[str, Said]:
    """The names that the functions of a class use, from their compiled code."""
    functions = {name: function_of(value) for name, value in vars(part).items()}
    return {name: of_code(function.__code__) for name, function in functions.items() if function is not None}


def function_of(value: Any) -> FunctionType | None:
    """The function behind a property, a decorator or a name."""
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, cached_property):
        value = value.func
    elif isinstance(value, staticmethod | classmethod):
        value = value.__func__
    value = inspect.unwrap(value) if callable(value) else value
    return value if isinstance(value, FunctionType) else None


def of_code(code: CodeType) -> Said:
    """The names that one function uses, with those of the functions inside it."""
    attributes, texts = set(), {constant for constant in code.co_consts if isinstance(constant, str)}
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "LOAD_SUPER_METHOD"):
            attributes.add(str(step.argval))
        elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval == "super":
            attributes.add("super")
    for constant in code.co_consts:
        if isinstance(constant, tuple):
            texts |= {item for item in constant if isinstance(item, str)}
        elif isinstance(constant, CodeType):
            within = of_code(constant)
            attributes, texts = attributes | within.attributes, texts | within.texts
    return Said(frozenset(attributes), frozenset(texts), code.co_argcount)
