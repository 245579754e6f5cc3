"""Detection of calls of ``checkpoint(...)`` in a script that need the option `checkpoints` of the pool.

This lets a run without that option fail before it starts anything. Only calls that are certain to run are found: in the
script's own statements, or in functions of the script that these statements call, outside of any branch, loop or
``try``, and with no earlier statement that may end the script.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import field

from ...lazy_dataclass import dataclass

_HELP = frozenset({"-h", "--help", "--version", "-V"})
_ENDS = frozenset({"exit", "quit", "_exit", "abort", "execv", "execve", "execvp", "execl", "execlp", "kill"})
_DECLARATIONS = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Pass)
# a script with these words may set the variable that names the storage
_ELSEWHERE = re.compile("OUTRIDER_CHECKPOINTS|dotenv|environ")
_DEEPEST = 20  # follow calls of the script's own functions at most this deep


def needs_place(source: str, arguments: Sequence[str]) -> int:
    """Return the line of a call of `checkpoint` that is certain to run and passes no ``root``; 0: no such call
    was found.
    """
    if "checkpoint" not in source or _ELSEWHERE.search(source) or _HELP & {*arguments}:
        return 0
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 0
    functions = {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)}
    search = _Search(_names(tree), functions)
    if not search.names or any(isinstance(each, ast.Global | ast.Nonlocal) for each in ast.walk(tree)):
        return 0
    try:
        search.run(tree.body)
    except _Stop as stop:
        return stop.line
    return 0


class _Stop(Exception):
    """The exception that ends the search.

    ``line``: the line of the call that was found; 0: none, as the statements that follow may not run.
    """

    def __init__(self, line: int = 0) -> None:
        super().__init__()
        self.line = line


def _names(tree: ast.Module) -> frozenset[str]:
    """Return the names by which the script calls `outrider.checkpoint`.

    If the script also gives one of these names to another object, return no names.
    """
    names: set[str] = set()
    for each in ast.walk(tree):
        if isinstance(each, ast.ImportFrom) and each.module == "outrider" and not each.level:
            names |= {alias.asname or alias.name for alias in each.names if alias.name == "checkpoint"}
        elif isinstance(each, ast.Import):
            names |= {f"{alias.asname or 'outrider'}.checkpoint" for alias in each.names if alias.name == "outrider"}
    roots = {name.partition(".")[0] for name in names}
    bound = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    bound |= {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    bound |= {each.arg for each in ast.walk(tree) if isinstance(each, ast.arg)}
    return frozenset() if roots & bound else frozenset(names)


@dataclass(slots=True)
class _Search:
    names: frozenset[str]
    functions: Mapping[str, ast.FunctionDef]
    depth: int = field(default=0)

    def run(self, statements: Sequence[ast.stmt]) -> None:
        """Search statements that run one after the other.

        Raises:
            _Stop: The call was found, or the statements that follow may not run.
        """
        for each in statements:
            if isinstance(each, ast.If) and _is_main(each.test):
                self.run(each.body)
            elif isinstance(each, ast.Expr | ast.Assign | ast.AnnAssign) and each.value is not None:
                self._evaluate(each.value)
            elif isinstance(each, ast.Return):
                if each.value is not None:
                    self._evaluate(each.value)
                return
            elif isinstance(each, ast.With):
                for item in each.items:
                    self._evaluate(item.context_expr)
                # a context manager may suppress an error of its block, as pytest.raises does: what follows is not
                # certain to run
                raise _Stop
            elif not isinstance(each, _DECLARATIONS) and self._may_end(each):
                raise _Stop

    def _evaluate(self, value: ast.expr) -> None:
        if isinstance(value, ast.Call) and ast.unparse(value.func) in self.names:
            if not any(each.arg in (None, "root") for each in value.keywords):
                raise _Stop(value.lineno)
            return
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in self.functions:
            function = self.functions[value.func.id]
            if function.decorator_list or self.depth >= _DEEPEST or _yields(function):
                raise _Stop
            for argument in (*value.args, *(each.value for each in value.keywords)):
                self._evaluate(argument)
            self.depth += 1
            self.run(function.body)
            self.depth -= 1
        elif self._may_end(value):
            raise _Stop

    def _may_end(self, node: ast.AST) -> bool:
        """Return whether a statement or an expression may end the script or the function that contains it."""
        for each in ast.walk(node):
            if isinstance(each, ast.Return | ast.Raise | ast.Assert | ast.Try | ast.Yield | ast.YieldFrom | ast.Await):
                return True
            if isinstance(each, ast.Call):
                name = ast.unparse(each.func).rpartition(".")[2]
                if name in _ENDS or name in self.functions:
                    return True
        return False


def _yields(function: ast.FunctionDef) -> bool:
    return any(isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(function))


def _is_main(test: ast.expr) -> bool:
    return ast.unparse(test) == "__name__ == '__main__'"
