"""Rewrite a block's methods so that two modules run in one call where one alone reads the other's result.

In `self.bn(self.conv(x))`, and in `y = self.conv(x)` before `y = self.bn(y)`, the batch norm is the only
reader of the convolution's result, whatever the rest of the method does. The method's syntax tree shows this
without running it, and a copy of the method that differs in these calls alone does all that the method does.
"""

import ast
import inspect
from collections import Counter
from collections.abc import Callable
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

RUN_PAIR = "_mucudnn_run_pair"  # a method of the block: outer(inner(x)) becomes its call with outer, inner, x
_LEFT_ALONE = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef),
    *(ast.Try, ast.TryStar, ast.With, ast.AsyncWith),
)
_SEE_LOCALS = {
    "locals",
    "vars",
    "eval",
    "exec",
}  # they read local variables whose names the code may not show


class Pair(NamedTuple):
    """Two modules by their names in the block; `outer`, such as `bn1`, alone reads the result of `inner`."""

    inner: str
    outer: str


@cache
def find_pairs(method: Any) -> frozenset[Pair]:
    """Return the pairs of modules that a method calls; none if Python does not find its source."""
    found = set[Pair]()

    def note(pair: Pair) -> bool:
        found.add(pair)
        return False

    tree = _parse(method)
    if tree is not None:
        _Joiner(tree, method.__code__, accepts=note).join()
    return frozenset(found)


@cache
def joined(method: Any, pairs: frozenset[Pair]) -> FunctionType:
    """Return a copy of a method that runs each of these pairs in one call; `find_pairs` found them in it."""
    tree = _parse(method)
    assert tree is not None
    _Joiner(tree, method.__code__, accepts=pairs.__contains__).join()
    made = FunctionType(_compile(tree, method), method.__globals__, method.__name__, method.__defaults__)
    made.__kwdefaults__ = method.__kwdefaults__
    return made


def _parse(method: Any) -> ast.FunctionDef | None:
    """Return the syntax tree of a method; None unless it compiles to the code that the method has."""
    code = getattr(method, "__code__", None)
    if type(method) is not FunctionType or not isinstance(code, CodeType) or code.co_freevars:
        return None
    if not _SEE_LOCALS.isdisjoint(code.co_names):
        return None
    try:
        lines, _ = inspect.getsourcelines(method)
        # Inside an `if`, an indented method is a statement and keeps its columns.
        (tree,) = ast.parse("if True:\n" + "".join(lines)).body[0].body  # type: ignore[attr-defined]
    except (OSError, SyntaxError, ValueError):
        return None
    if not isinstance(tree, ast.FunctionDef) or tree.decorator_list:
        return None
    ast.increment_lineno(tree, code.co_firstlineno - tree.lineno)
    # The file may have changed since it was imported, or something may have changed the code.
    return tree if _compile(tree, method) == code else None


def _compile(tree: ast.FunctionDef, method: FunctionType) -> CodeType:
    """Compile the syntax tree of a method, with the method's qualified name and flags."""
    code, known = method.__code__, method.__globals__
    # Python 3.11 to 3.13 compile the call of a function of a module in their own way if they see its import.
    modules = [ast.alias(name) for name in code.co_names if isinstance(known.get(name), ModuleType)]
    whole = ast.Module([*([ast.Import(modules)] if modules else []), tree], [])
    compiled = compile(ast.fix_missing_locations(whole), code.co_filename, "exec", dont_inherit=True)
    made = next(c for c in compiled.co_consts if isinstance(c, CodeType) and c.co_name == tree.name)
    return made.replace(co_flags=code.co_flags, co_qualname=code.co_qualname)


class _Joiner(ast.NodeTransformer):
    """Rewrites a method's tree: each pair of calls that `accepts` accepts becomes one call."""

    def __init__(self, tree: ast.FunctionDef, code: CodeType, accepts: Callable[[Pair], bool]) -> None:
        self._tree, self._accepts = tree, accepts
        self._self_name = code.co_varnames[0] if code.co_argcount else ""  # the method's word for `self`
        self._locals = {*code.co_varnames} - {*code.co_cellvars}
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
        self._uses = Counter(name.id for name in names)
        if any(name.id == self._self_name and not isinstance(name.ctx, ast.Load) for name in names):
            self._self_name = ""

    def join(self) -> None:
        """Change the method's syntax tree."""
        self._join_inside(self._tree)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Join the calls inside a node, except in other scopes and where an error may not end the method."""
        if not isinstance(node, _LEFT_ALONE):
            self._join_inside(node)
        return node

    def _join_inside(self, node: ast.AST) -> None:
        for field in ("body", "orelse"):
            if isinstance(statements := getattr(node, field, None), list):
                setattr(node, field, self._with_calls_for_names(statements))
        super().generic_visit(node)

    def visit_Call(self, call: ast.Call) -> ast.AST:
        """Replace `outer(inner(x))` by one call that runs both, if the pair is accepted."""
        inner = call.args[0] if len(call.args) == 1 else None
        if not isinstance(inner, ast.Call) or not self._is_accepted(inner, call):
            return self.generic_visit(call)
        run = ast.Attribute(ast.Name(self._self_name, ast.Load()), RUN_PAIR, ast.Load())
        both = ast.Call(run, [call.func, inner.func, self.visit(inner.args[0])], [])
        return ast.copy_location(both, inner)  # the line that an error shows

    def _with_calls_for_names(self, statements: list[Any]) -> list[Any]:
        """Write `y = inner(x)` into the next statement, as `outer(inner(x))`, where that alone reads y."""
        kept: list[Any] = []
        for statement in statements:
            reader = self._find_reader(kept[-1], statement) if kept else None
            if reader is not None:
                reader.args = [kept.pop().value]
            kept.append(statement)
        return kept

    def _find_reader(self, first: ast.stmt, second: ast.stmt) -> ast.Call | None:
        """Return the call in `second` that alone reads the name that `first` assigns; or None."""
        if not (isinstance(first, ast.Assign) and isinstance(first.value, ast.Call)):
            return None
        name = _assigned_name(first)
        if name not in self._locals:
            return None
        is_last = _assigned_name(second) == name or isinstance(second, ast.Return) or self._uses[name] == 2
        reads = [n for n in ast.walk(second) if isinstance(n, ast.Name) and n.id == name]
        if not is_last or sum(isinstance(read.ctx, ast.Load) for read in reads) != 1:
            return None
        reader = second.value if isinstance(second, ast.Assign | ast.Return) else None
        while isinstance(reader, ast.Call) and reader.args and not isinstance(reader.args[0], ast.Name):
            if not _is_path(ast.unparse(reader.func)):  # an expression before the call might have an effect
                return None
            reader = reader.args[0]
        if not isinstance(reader, ast.Call) or not reader.args or reader.args[0] not in reads:
            return None
        return reader if self._is_accepted(first.value, reader) else None

    def _is_accepted(self, inner: ast.Call, outer: ast.Call) -> bool:
        names = [self._module_of(call) for call in (inner, outer)]
        return None not in names and self._accepts(Pair(*names))  # type: ignore[arg-type]

    def _module_of(self, call: ast.Call) -> str | None:
        """Return the module's name in the block if the call is `self.name(x)`; None for other calls."""
        if len(call.args) != 1 or call.keywords or isinstance(call.args[0], ast.Starred):
            return None
        own, _, name = ast.unparse(call.func).partition(".")
        return name if own == self._self_name and _is_path(name) else None


def _is_path(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def _assigned_name(statement: ast.stmt) -> str | None:
    """Return the name that a statement assigns its value to, if it is one name and nothing else."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        return target.id if isinstance(target, ast.Name) else None
    return None
