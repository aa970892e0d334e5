"""Small faults in a module: each mutant changes one operator, constant, condition or statement."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

__all__ = ["Mutant", "mutants_of"]

_SWAPPED: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
}  # fmt: skip

_DROPPED: Final = (ast.Expr, ast.AugAssign, ast.Assign, ast.Continue, ast.Raise)
_SAME_WITHOUT: Final = ("__slots__", "__all__")


Steps: TypeAlias = tuple[tuple[str, int | None], ...]
"""The way from a module to a node: fields, and the place in those that are lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One fault.

    Args:
        path: The module.
        module: The module as it is.
        steps: To the node that is changed.
        statement: To the statement that this is in.
        number: Which of the changes that the node can have.
        place: The function or class around it; "": the module itself.
        at_import: The line runs when the module is imported, not when a test runs.
    """

    path: Path
    module: ast.Module
    steps: Steps
    statement: Steps
    number: int
    place: str
    at_import: bool

    @property
    def line(self) -> int:
        """Where the fault is."""
        found: int = _at(self.module, self.steps).lineno  # type: ignore[attr-defined]
        return found

    @property
    def name(self) -> str:
        """What tells it from others, whatever is edited elsewhere in the module."""
        was, now = _line(_at(self.module, self.statement)), _line(_at(self.tree(), self.statement))
        return f"{self.path.name} {self.place or '(module)'}: {was}  ->  {now}"

    def tree(self) -> ast.Module:
        """Return the module with the fault."""
        node = _at(self.module, self.steps)
        fault = list(_faults(node))[self.number]
        mutated = copy.deepcopy(self.module)
        _put(mutated, self.steps, ast.copy_location(fault, node))
        return ast.fix_missing_locations(mutated)


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield every mutant of a module, in the order of its source."""
    module = ast.parse(path.read_text("utf-8"))
    for steps, statement, place, at_import in _nodes(module):
        for number, _ in enumerate(_faults(_at(module, steps))):
            yield Mutant(
                path=path,
                module=module,
                steps=steps,
                statement=statement,
                number=number,
                place=place,
                at_import=at_import,
            )


def _nodes(module: ast.Module) -> Iterator[tuple[Steps, Steps, str, bool]]:
    """Yield the way to each node that may change and to its statement, and where that stands."""
    waiting: list[tuple[ast.AST, Steps, Steps, str, bool]] = [(module, (), (), "", True)]
    while waiting:
        node, steps, statement, place, at_import = waiting.pop()
        if isinstance(node, ast.stmt):
            statement = steps
        if _is_apart(node):
            continue
        if steps:
            yield steps, statement, place, at_import
        inner, later = place, at_import
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            inner = f"{place}.{node.name}" if place else node.name
            later = at_import and isinstance(node, ast.ClassDef)
        found = []
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "type_params", "type_comment"):
                continue
            body = field in ("body", "orelse", "finalbody", "handlers")
            where = (inner, later) if body else (place, at_import)
            for at, child in enumerate(value) if isinstance(value, list) else ((None, value),):
                if isinstance(child, ast.AST):
                    found.append((child, (*steps, (field, at)), statement, *where))
        waiting.extend(reversed(found))


def _is_apart(node: ast.AST) -> bool:
    """Return whether nothing in a node decides anything: declarations and texts for people."""
    if isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr):
        return True
    if isinstance(node, ast.Assign):
        named = [target.id for target in node.targets if isinstance(target, ast.Name)]
        return any(name in _SAME_WITHOUT for name in named) or _is_declaration(node.value)
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef) and node.name == "__repr__"


def _is_declaration(value: ast.expr) -> bool:
    called = value.func if isinstance(value, ast.Call) else None
    return isinstance(called, ast.Name) and called.id == "TypeVar"


def _faults(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=[op]) | ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in _SWAPPED:
            single = isinstance(node, ast.Compare)
            swapped = _SWAPPED[type(op)]()
            yield _changed(node, "ops" if single else "op", [swapped] if single else swapped)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as number):
            yield ast.Constant(number + 1)
            yield ast.Constant(number - 1)
        case ast.If(test=test) | ast.IfExp(test=test) if not isinstance(test, ast.UnaryOp):
            yield _changed(node, "test", ast.UnaryOp(ast.Not(), test))
        case ast.stmt() if _may_be_dropped(node):
            yield ast.Pass()


def _changed(node: ast.AST, field: str, value: object) -> ast.AST:
    changed = copy.deepcopy(node)
    setattr(changed, field, value)
    return changed


def _may_be_dropped(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(value=ast.Constant() | ast.Yield()):
            return False  # a docstring; a driver would wait for ever
        case ast.Assign(targets=[ast.Name() | ast.Tuple(), *_]):
            return False  # that a name is missing, any test finds
    return isinstance(node, _DROPPED)


def _at(module: ast.AST, steps: Steps) -> ast.AST:
    node = module
    for field, at in steps:
        value = getattr(node, field)
        node = value if at is None else value[at]
    return node


def _put(module: ast.AST, steps: Steps, node: ast.AST) -> None:
    *way, (field, at) = steps
    parent = _at(module, tuple(way))
    if at is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[at] = node


def _line(node: ast.AST) -> str:
    """Return a statement as one line, without its body."""
    lines = ast.unparse(node).splitlines()
    return lines[0] if hasattr(node, "body") else " ".join(line.strip() for line in lines)
