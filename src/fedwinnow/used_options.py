"""Which of its inherited options a method uses: those that its code can reach.

A method that overrides `objective` without the inherited loss leaves `loss` without effect; nobody should be able to
give it then. What functions say is read from source text, where nothing may be imported, or from compiled code, where
there may be no text. The rest is the same: from the functions that the federation calls to all that these name.
"""

from __future__ import annotations

import ast
import dis
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import CodeType, FunctionType
from typing import Any

SHARED = ("loss", "mixup", "aggregate")  # options of every method, which a method may leave without effect
CALLED = ("start", "exchanges", "models", "joined", "send", "load", "logits", "verdict", "judge", "predict", "needed")
ASKED = "train"  # the question that is asked where a method names no other
ANSWERS = 3  # parameters of a function that answers on site: self, client, got


@dataclass(frozen=True)
class Said:
    """What one function says."""

    attributes: frozenset[str]  # of self, or of anything else
    texts: frozenset[str]  # a question is asked by the name of the function that answers it
    parameters: int

    @property
    def calls_base(self) -> bool:
        """Whether what it overrides may be called."""
        return "super" in self.attributes


Lineage = Sequence[dict[str, Said]]  # of a class and its bases, the nearest first; the last is that of all methods


def unused(lineage: Lineage, facts: dict[str, Any]) -> tuple[str, ...]:
    """The options of every method that have no effect in this one."""
    named = reached(lineage) | set(facts.get("uses") or ())
    found = [name for name in SHARED if name not in named or (name == "aggregate" and facts.get("own_aggregation"))]
    return (*found, "steady") if facts.get("own_models") else tuple(found)


def reached(lineage: Lineage) -> set[str]:
    """All attributes that are named by functions which can be called."""
    own, seen, named = lineage[:-1], set[tuple[int, str]](), set[str]()
    answers = {name for functions in own for name, said in functions.items() if said.parameters == ANSWERS}
    asked = follow(lineage, [*CALLED, *answers], seen, named)
    if not asked and place_of(lineage, ASKED) is not None:  # whom it asks is not written here
        follow(lineage, [ASKED], seen, named)
    return named


def follow(lineage: Lineage, roots: Iterable[str], seen: set[tuple[int, str]], named: set[str]) -> bool:
    """Go from functions to those that they name; true where one of them is named by a text, as questions are."""
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
    """The nearest class from here on that has a function of this name."""
    return next((place for place in range(start, len(lineage)) if name in lineage[place]), None)


# --- from source text ----------------------------------------------------------------------------------------------


def said_in_text(node: ast.ClassDef) -> dict[str, Said]:
    """What the functions of a class say, by its source text."""
    return {function.name: of_text(function) for function in node.body if isinstance(function, ast.FunctionDef)}


def of_text(function: ast.FunctionDef) -> Said:
    """What one function says."""
    inside = [node for statement in function.body for node in ast.walk(statement)]
    attributes = {node.attr for node in inside if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    attributes |= {"super" for node in inside if isinstance(node, ast.Name) and node.id == "super"}
    texts = {node.value for node in inside if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    arguments = function.args
    return Said(frozenset(attributes), frozenset(texts), len(arguments.posonlyargs) + len(arguments.args))


# --- from compiled code --------------------------------------------------------------------------------------------


def said_in_code(part: type) -> dict[str, Said]:
    """What the functions of a class say, by their compiled code."""
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
    """What one function says, with the functions inside of it."""
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
