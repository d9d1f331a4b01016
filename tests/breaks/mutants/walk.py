"""All mutants of a module: a walk over its syntax tree that applies the mutation operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper, PositionProvider

from tests.breaks.mutants import operators
from tests.breaks.mutants.exclusions import excluded_by
from tests.breaks.mutants.mutant import Mutant
from tests.breaks.mutants.operators import code


def mutants_of(path: str, source: bytes) -> tuple[list[Mutant], Counter[str]]:
    """Return the mutants of the functions of a file, and the number of nodes that each rule of exclusion left out."""
    wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
    walk = _Walk(path, source)
    wrapper.visit(walk)
    return walk.mutants, walk.excluded


@dataclass
class _Function:
    node: cst.FunctionDef
    #: Names that have a value at the current place of the walk.
    assigned: set[str] = field(default_factory=set)


class _Walk(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider, ByteSpanPositionProvider)

    def __init__(self, path: str, source: bytes) -> None:
        super().__init__()
        self.mutants: list[Mutant] = []
        self.excluded: Counter[str] = Counter()
        self._path = path
        self._source = source
        self._functions: list[_Function] = []
        self._classes: list[cst.ClassDef] = []
        self._scopes: list[str] = []
        self._lines = (0, 0)
        self._numbers: Counter[tuple[str, ...]] = Counter()
        self._tests: set[int] = set()  # conditions that are negated as a whole
        self._raises = 0

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Raise):
            self._raises += 1  # `on_leave` is also called for nodes that are left out
        if rule := excluded_by(node, code):
            self.excluded[rule] += 1
            return False
        if isinstance(node, cst.ClassDef):
            self._classes.append(node)
            self._scopes.append(node.name.value)
        elif isinstance(node, cst.FunctionDef):
            self._enter(node)
        elif isinstance(node, cst.Param):
            return False  # `_enter` has changed the defaults
        if isinstance(node, cst.SimpleStatementLine):
            self._lines = self._span(node)
        elif isinstance(node, cst.If | cst.While):
            self._lines = self._span(node.test)
        elif isinstance(node, cst.For):
            self._lines = self._span(node.iter)
        elif isinstance(node, cst.With):
            self._lines = (self._span(node)[0], self._span(node.items[-1])[1])
            if self._functions:
                self._leave_out_with(node)
        if self._functions:
            self._apply(node)
        return True

    def on_leave(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.FunctionDef) and self._functions and self._functions[-1].node is node:
            self._functions.pop()
            del self._scopes[-2:]
        elif isinstance(node, cst.ClassDef) and self._classes and self._classes[-1] is node:
            self._classes.pop()
            self._scopes.pop()
        if isinstance(node, cst.Raise):
            self._raises -= 1

    def _enter(self, node: cst.FunctionDef) -> None:
        parameters = [*node.params.posonly_params, *node.params.params, *node.params.kwonly_params]
        self._scopes += [node.name.value, "<locals>"]
        self._functions.append(_Function(node, {parameter.name.value for parameter in parameters}))
        body = _without_documentation(node)
        if not body:
            return
        self._lines = self._span(body[0])
        for parameter in parameters:
            if parameter.default is not None and (new := operators.changed_constant(parameter.default)) is not None:
                self._add("default changed", parameter.default, new, parameter=parameter.name.value)
        if len(body) > 1 or isinstance(body[0], cst.BaseCompoundStatement):
            start = self.get_metadata(ByteSpanPositionProvider, body[0]).start
            if isinstance(body[0], cst.FunctionDef | cst.ClassDef) and body[0].decorators:
                return
            column = self.get_metadata(PositionProvider, body[0]).start.column
            self._add_text("early return", start, start, f"return None\n{' ' * column}")

    def _apply(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.If | cst.IfExp | cst.While):
            self._tests.add(id(node.test))
        for operator in operators.OPERATORS:
            if isinstance(node, operator.types) and not self._is_excluded(node, operator.name):
                for target, new in operator.changes(node):
                    self._add(operator.name, target, new)
        if isinstance(node, cst.Assign | cst.AnnAssign):
            self._assign(node)
        elif isinstance(node, cst.Try) and node.finalbody is not None:
            self._skip_finally(node, node.finalbody)

    def _is_excluded(self, node: cst.CSTNode, operator: str) -> bool:
        """Return whether another operator makes the same change, or the change is in the text of an exception."""
        if self._raises and not isinstance(node, cst.Raise):
            return True
        if id(node) not in self._tests:
            return False
        if operator == "comparison changed" and isinstance(node, cst.Comparison) and len(node.comparisons) == 1:
            return not isinstance(
                node.comparisons[0].operator,
                cst.LessThan | cst.LessThanEqual | cst.GreaterThan | cst.GreaterThanEqual,
            )
        return operator == "arithmetic changed"

    def _assign(self, node: cst.Assign | cst.AnnAssign) -> None:
        targets = [target.target for target in node.targets] if isinstance(node, cst.Assign) else [node.target]
        names = {target.value for target in targets if isinstance(target, cst.Name)}
        assigned = self._functions[-1].assigned
        if names and names <= assigned and node.value is not None and len(names) == len(targets):
            self._add("assignment dropped", node, "pass")
        assigned |= names
        for target in targets:
            if isinstance(target, cst.Tuple):
                assigned |= {element.value.value for element in target.elements if isinstance(element.value, cst.Name)}

    def _leave_out_with(self, node: cst.With) -> None:
        if not isinstance(node.lpar, cst.MaybeSentinel) or node.asynchronous is not None:
            return
        start = self.get_metadata(ByteSpanPositionProvider, node).start
        last = self.get_metadata(ByteSpanPositionProvider, node.items[-1])
        for place, item in enumerate(node.items):
            rest = [*node.items[:place], *node.items[place + 1 :]]
            if item.asname is not None:
                if not isinstance(item.asname.name, cst.Name):
                    continue
                new = f"if [{item.asname.name.value} := ({code(item.item)})]"
                if rest:
                    continue
            elif rest:
                words = [f"{code(left.item)}{f' {code(left.asname).strip()}' if left.asname else ''}" for left in rest]
                new = f"with {', '.join(words)}"
            else:
                new = "if True"
            self._add_text("with left out", start, last.start + last.length, new)

    def _skip_finally(self, node: cst.Try, last: cst.Finally) -> None:
        inner = last.body.body[0] if isinstance(last.body, cst.IndentedBlock) else None
        if inner is None:
            return
        self._lines = (self._span(inner)[0], self._span(last.body)[1])
        span = self.get_metadata(ByteSpanPositionProvider, inner)
        rest = self.get_metadata(ByteSpanPositionProvider, last.body.body[-1])
        self._add_text("finally skipped", span.start, rest.start + rest.length, "pass")
        start = self.get_metadata(ByteSpanPositionProvider, last).start
        if node.handlers or node.orelse is not None or self._source[start : start + 7] != b"finally":
            return
        indent = " " * self.get_metadata(PositionProvider, last).start.column
        new = f"except ():\n{indent}    pass\n{indent}else"
        self._add_text("finally without an exception only", start, start + 7, new)

    def _add(self, operator: str, node: cst.CSTNode, new: str, parameter: str = "") -> None:
        span = self.get_metadata(ByteSpanPositionProvider, node)
        self._add_text(operator, span.start, span.start + span.length, new, parameter)

    def _add_text(self, operator: str, start: int, end: int, new: str, parameter: str = "") -> None:
        function = ".".join(self._scopes[:-1])
        old = self._source[start:end].decode()
        if start == end:
            old = self._source[start : self._source.find(b"\n", start)].decode()
        key = (function, operator, old, new)
        first, last = self._lines
        self.mutants.append(
            Mutant(self._path, function, first, last, operator, start, end, old, new, self._numbers[key], parameter)
        )
        self._numbers[key] += 1

    def _span(self, node: cst.CSTNode) -> tuple[int, int]:
        where = self.get_metadata(PositionProvider, node)
        return where.start.line, where.end.line


def _without_documentation(node: cst.FunctionDef) -> Sequence[cst.BaseStatement]:
    if not isinstance(node.body, cst.IndentedBlock):
        return ()
    body = list(node.body.body)
    first = body[0]
    expression = first.body[0] if isinstance(first, cst.SimpleStatementLine) else None
    is_text = isinstance(expression, cst.Expr) and isinstance(
        expression.value, cst.SimpleString | cst.ConcatenatedString
    )
    return body[1:] if is_text else body
