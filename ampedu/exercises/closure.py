"""From the cells of a notebook, in the order they ran, to the source that one name needs.

Imports, definitions, constants.

The last definition wins. A name that is read while a statement runs (a default, a decorator, the right side of an
assignment) is taken as it was before that statement; a name that a function body reads is taken as it is at the end.
"""

import ast
import builtins
import functools
import re
import symtable
from dataclasses import dataclass, field

_CELL_MAGIC_THAT_RUNS = ("%%time", "%%capture", "%%prun")
# For a line without its indentation: leading blanks beside `[\w, ]` would take quadratic time.
_MAGIC = re.compile(r"[%!?]|[\w.]+\?\??\s*$|[\w,][\w, ]*=\s*[%!]")
_KEPT_BLOCKS = (ast.If, ast.Try)


@dataclass
class Statement:
    """A top-level statement.

    Its source, the names it binds, changes in place, reads at once (eager) and reads later (late).
    """

    source: str
    node: ast.stmt
    binds: set[str] = field(default_factory=set)
    changes: set[str] = field(default_factory=set)
    eager: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Closure:
    """source: the statements that the name needs.

    Names: all that they bind. missing: names that no kept statement binds.

    unkept: those of the missing names that the cells do bind, but in a loop, a `with` block or a call, not as a plain
    constant.
    """

    source: str
    names: frozenset[str]
    missing: frozenset[str]
    unkept: frozenset[str]


def closure(cells: list[str], name: str) -> str:
    """The source that ``name`` needs, from the cells in the order they ran.

    Raises LookupError if no cell defines it.
    """
    return analyze(cells, name).source


def analyze(cells: list[str], name: str) -> Closure:
    """Like ``closure``, with the names involved.

    Cells with magics or syntax errors do no harm: what can be read is read.
    """
    statements, unkept = [], set()
    for cell in cells:
        kept, others = _examined(cell)
        statements += kept
        unkept |= others
    chosen, missing = _select(statements, name)
    if not chosen:
        raise LookupError(f"no cell that has run defines {name}")
    stars = {i for i, statement in enumerate(statements) if missing and "*" in statement.binds}
    picked = [statements[i] for i in sorted(chosen | stars)]
    # The compiler wants `from __future__` first.
    picked = [s for s in statements if _is_future(s.node)] + picked
    names = frozenset().union(*(s.binds for s in picked))
    return Closure("\n\n".join(s.source for s in picked) + "\n", names, frozenset(missing), frozenset(missing & unkept))


def _is_future(node):
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _select(statements, name):
    chosen, missing, visited = set(), set(), set()
    pending = [(name, len(statements))]
    while pending:
        wanted, before = pending.pop()
        if (wanted, before) in visited:
            continue
        visited.add((wanted, before))
        indices = [i for i in range(before) if wanted in statements[i].binds]
        if not indices and before < len(statements):
            pending.append((wanted, len(statements)))
            continue
        if not indices:
            if wanted not in vars(builtins):
                missing.add(wanted)
            continue
        changed = [i for i in range(indices[-1], before) if wanted in statements[i].changes]
        for i in {indices[-1], *changed}:
            chosen.add(i)
            pending += [(dep, i) for dep in statements[i].eager]
            pending += [(dep, before) for dep in statements[i].late]
    return chosen, missing


@functools.lru_cache(maxsize=4096)
def _examined(cell):
    """The statements of a cell that are kept, and the names that its other statements bind."""
    kept, others = [], frozenset()
    for source, node in _statements(cell):
        statement = _examine(source, node) if _is_kept(node) else None
        if statement:
            kept.append(statement)
        else:
            others |= _bound_names(node)
    return kept, others


def _statements(cell):
    text, tree = _parse(cell)
    lines = text.split("\n")  # not splitlines(), which also splits at form feeds and U+2028
    spans = [(_first_line(node), node.end_lineno) for node in tree.body]
    for i, (node, (first, last)) in enumerate(zip(tree.body, spans, strict=True)):
        shares_a_line = (i > 0 and spans[i - 1][1] >= first) or (i + 1 < len(spans) and spans[i + 1][0] <= last)
        yield (ast.unparse(node) if shares_a_line else "\n".join(lines[first - 1 : last])), node


def _first_line(node):
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])


def _parse(cell):
    """The cell as Python: magics blanked only if it does not parse as it is; an empty module if that does not help."""
    text = cell.replace("\r\n", "\n").replace("\r", "\n")
    if text.lstrip().startswith("%%"):
        head, _, rest = text.lstrip().partition("\n")
        text = rest if head.split()[0] in _CELL_MAGIC_THAT_RUNS else ""
    for candidate in (text, _without_magics(text)):
        try:
            return candidate, ast.parse(candidate)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return "", ast.parse("")


def _without_magics(text):
    lines = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        lines.append(f"{indent}pass" if _MAGIC.match(line[len(indent) :]) else line)
    return "\n".join(lines)


def _is_kept(node):
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)):
        return True
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        return node.value is not None
    if isinstance(node, _KEPT_BLOCKS):
        parts = [*node.body, *node.orelse, *getattr(node, "finalbody", [])]
        parts += [statement for handler in getattr(node, "handlers", []) for statement in handler.body]
        return all(_is_kept(part) or isinstance(part, (ast.Pass, ast.Raise)) for part in parts)
    return False


def _examine(source, node):
    """The Statement of a node, or None for what parses but does not compile."""
    result = Statement(source, node)
    for part in ast.walk(node) if isinstance(node, _KEPT_BLOCKS) else [node]:
        if isinstance(part, (ast.Import, ast.ImportFrom)):
            result.binds |= {(alias.asname or alias.name).split(".")[0] for alias in part.names}
        elif isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            result.binds.add(part.name)
        elif isinstance(part, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            _targets(part, result)
    try:
        _reads(ast.unparse(node), result)
    except SyntaxError:
        return None
    result.late -= result.eager
    return result


def _targets(node, result):
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        for part in ast.walk(target):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                (result.changes if isinstance(node, ast.AugAssign) else result.binds).add(part.id)
            elif isinstance(part, (ast.Attribute, ast.Subscript)) and isinstance(part.ctx, ast.Store):
                root = part
                while isinstance(root, (ast.Attribute, ast.Subscript)):
                    root = root.value
                if isinstance(root, ast.Name):
                    result.changes.add(root.id)
    result.eager |= {n.target.id for n in [node] if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)}


def _reads(text, result):
    """Names that the statement takes from the module: exactly, by the compiler's own symbol table."""
    top = symtable.symtable(text, "<cell>", "exec")
    pending = [(top, False)]
    while pending:
        scope, inside_function = pending.pop()
        for symbol in scope.get_symbols():
            # `global n; n += 1` reads n, but the symbol table counts it as an assignment only.
            if not (symbol.is_referenced() or symbol.is_declared_global()):
                continue
            if scope is top or symbol.is_global():
                (result.late if inside_function else result.eager).add(symbol.get_name())
        for child in scope.get_children():
            later = inside_function or (child.get_type() == "function" and not _runs_at_once(child))
            pending.append((child, later))


def _runs_at_once(scope):
    return scope.get_name() in ("genexpr", "listcomp", "setcomp", "dictcomp")


def _bound_names(node):
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    for part in ast.walk(node):
        if isinstance(part, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in part.names}
        elif isinstance(part, (ast.FunctionDef, ast.ClassDef)):
            names.add(part.name)
    return names


def uses(source: str, dotted: tuple[str, ...]) -> list[str]:
    """Which of the dotted names (such as "torch.finfo") the source uses, under whatever name it imported them."""
    tree = ast.parse(source)
    alias = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for item in node.names:
                alias[item.asname or item.name.split(".")[0]] = item.name if item.asname else item.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for item in node.names:
                alias[item.asname or item.name] = f"{node.module}.{item.name}"
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)):
            found.add(_full_name(node, alias))
    return [name for name in dotted if any(full == name or full.startswith(name + ".") for full in found)]


def imported(source: str) -> set[str]:
    """The top-level packages that the source imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {item.name.split(".")[0] for item in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def _full_name(node, alias):
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([alias.get(node.id, node.id), *reversed(parts)])


def until(source: str, line: int) -> str:
    """The cell up to the top-level statement that starts on or before this line."""
    text, tree = _parse(source)
    ends = [node.end_lineno for node in tree.body if node.lineno <= line]
    return "\n".join(text.split("\n")[: max(ends)]) if ends else text


def forget() -> None:
    """Drop what is kept of cells that were read before: for a program that reads many notebooks."""
    _examined.cache_clear()


def parsed(source: str) -> ast.Module:
    """The syntax tree of a cell; magics are left out, and a cell that does not parse is empty."""
    return _parse(source)[1]


def calls(source: str, function: str) -> list[ast.Call]:
    """The calls ``function(…)`` in a cell."""
    return [
        n for n in ast.walk(_parse(source)[1]) if isinstance(n, ast.Call) and getattr(n.func, "id", None) == function
    ]
