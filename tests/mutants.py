"""Every small change of a module's source, one at a time: what goldens must notice."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

SWAPS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitXor: ast.BitOr, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
CALLS = {"maximum": "minimum", "zeros": "ones", "empty": "zeros", "sqrt": "abs", "floor": "ceil", "min": "max"}


@dataclass(frozen=True)
class Mutant:
    """A changed module and what was changed in it."""

    name: str  # function: the changed line before -> after
    function: str
    tree: ast.Module

    def load(self, original: ModuleType) -> ModuleType:
        """The module as it would be; its imports are the real ones."""
        made = ModuleType(f"{original.__name__}_mutant")
        made.__file__ = original.__file__
        exec(compile(self.tree, self.name, "exec"), made.__dict__)
        return made


def source_of(module: ModuleType) -> str:
    assert module.__file__ is not None
    return Path(module.__file__).read_text("utf-8")


def parsed(module: ModuleType) -> ast.Module:
    return ast.parse(source_of(module))


def functions(module: ModuleType) -> list[str]:
    """Where a change may be: the module's own lines, and each function."""
    return ["module", *(node.name for node in parsed(module).body if isinstance(node, ast.FunctionDef))]


def mutants(module: ModuleType, function: str) -> Iterator[Mutant]:
    """Every change of one function, or of the module's own lines."""
    tree, lines, named = parsed(module), source_of(module).splitlines(), Counter[str]()
    for path, node in _nodes(tree):
        top = _at(tree, path[:1])
        if (top.name if isinstance(top, ast.FunctionDef) else "module") != function:
            continue
        for change in range(_changes(node)):
            mutated = copy.deepcopy(tree)
            _change(mutated, path, _at(mutated, path), change)
            ast.fix_missing_locations(mutated)
            before = lines[node.lineno - 1].strip()
            name = f"{function}: {before} [{_text(node)} -> {_text(_at(mutated, path))}]"
            named[name] += 1
            yield Mutant(name + (f" #{named[name]}" if named[name] > 1 else ""), function, mutated)


Way = tuple[tuple[str, int | None], ...]


def _nodes(tree: ast.Module) -> Iterator[tuple[Way, ast.AST]]:
    """Every node but annotations, docstrings, imports and the words of messages."""

    def walk(node: ast.AST, path: Way) -> Iterator[tuple[Way, ast.AST]]:
        yield path, node
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "ctx"):
                continue
            children = enumerate(value) if isinstance(value, list) else [(None, value)]
            for index, child in children:
                skipped = isinstance(child, (ast.Import, ast.ImportFrom, ast.JoinedStr, ast.Raise))
                if isinstance(child, ast.AST) and not skipped:
                    yield from walk(child, (*path, (name, index)))

    yield from walk(tree, ())


def _at(tree: ast.AST, path: Way) -> ast.AST:
    for name, index in path:
        child = getattr(tree, name)
        tree = child if index is None else child[index]
    return tree


def _changes(node: ast.AST) -> int:
    if isinstance(node, (ast.BinOp, ast.AugAssign)):
        return int(type(node.op) in SWAPS)
    if isinstance(node, ast.BoolOp):
        return 1
    if isinstance(node, ast.Compare):
        return len(node.ops)
    if isinstance(node, ast.UnaryOp):
        return 1
    if isinstance(node, ast.Constant):
        return int(isinstance(node.value, (bool, int, float)))
    if isinstance(node, ast.Attribute):
        return int(node.attr in CALLS)
    if isinstance(node, ast.Name):
        return int(node.id in ("min", "max") or node.id in CALLS)
    if isinstance(node, ast.Expr):
        return int(isinstance(node.value, ast.Call))
    return int(isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise))


def _change(tree: ast.Module, path: Way, node: ast.AST, change: int) -> None:
    if isinstance(node, (ast.BinOp, ast.AugAssign, ast.BoolOp)):
        node.op = SWAPS[type(node.op)]()
    elif isinstance(node, ast.Compare):
        node.ops[change] = SWAPS[type(node.ops[change])]()
    elif isinstance(node, ast.Constant):
        value = node.value
        node.value = not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else value * 2 or 1.0
    elif isinstance(node, ast.Attribute):
        node.attr = CALLS[node.attr]
    elif isinstance(node, ast.Name):
        node.id = "min" if node.id == "max" else "max"
    else:
        parent = _at(tree, path[:-1])
        name, index = path[-1]
        if isinstance(node, ast.UnaryOp):
            new: ast.AST = node.operand
        elif isinstance(node, ast.If):
            node.test = ast.Constant(False)
            return
        else:
            new = ast.Pass()
        if index is None:
            setattr(parent, name, new)
        else:
            getattr(parent, name)[index] = new


def _text(node: ast.AST) -> str:
    return ast.unparse(node).split("\n")[0][:60]
