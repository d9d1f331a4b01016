"""The mutation operators: for a node of libcst, the texts that replace it.

Each operator is a function of a node that yields pairs: the node to replace, and the replacement text. Operators do not
know the place of the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import libcst as cst

Change = tuple[cst.CSTNode, str]
_MODULE = cst.Module([])


def code(node: cst.CSTNode) -> str:
    """Return the source of a node."""
    return _MODULE.code_for_node(node)


@dataclass(frozen=True, slots=True)
class Operator:
    """A kind of change. `types`: the types of nodes for `changes`."""

    name: str
    example: str
    types: tuple[type[cst.CSTNode], ...]
    changes: Callable[[cst.CSTNode], Iterator[Change]]


def _negated(node: cst.CSTNode) -> Iterator[Change]:
    assert isinstance(node, cst.If | cst.IfExp | cst.While)
    test = node.test
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        yield test, f"({code(test.expression)})"
    else:
        yield test, f"not ({code(test)})"


def _always(node: cst.CSTNode) -> Iterator[Change]:
    assert isinstance(node, cst.If | cst.IfExp)
    if code(node.test) not in ("True", "False"):
        yield node.test, "True"


def _never(node: cst.CSTNode) -> Iterator[Change]:
    assert isinstance(node, cst.If | cst.IfExp | cst.While)
    if code(node.test) not in ("True", "False"):
        yield node.test, "False"


_NEXT: Mapping[type[cst.BaseCompOp], str] = {
    cst.LessThan: "<=",
    cst.LessThanEqual: "<",
    cst.GreaterThan: ">=",
    cst.GreaterThanEqual: ">",
    cst.Equal: "!=",
    cst.NotEqual: "==",
    cst.Is: "is not",
    cst.IsNot: "is",
    cst.In: "not in",
    cst.NotIn: "in",
}


def _compared(node: cst.CSTNode) -> Iterator[Change]:
    assert isinstance(node, cst.Comparison)
    if len(node.comparisons) == 1:
        target = node.comparisons[0]
        if (new := _NEXT.get(type(target.operator))) is not None:
            yield node, f"({code(node.left)} {new} {code(target.comparator)})"


def _and_or(node: cst.CSTNode) -> Iterator[Change]:
    assert isinstance(node, cst.BooleanOperation)
    new = "or" if isinstance(node.operator, cst.And) else "and"
    yield node, f"({code(node.left)} {new} {code(node.right)})"


_ARITHMETIC: Mapping[type[cst.CSTNode], str] = {
    cst.Add: "-",
    cst.Subtract: "+",
    cst.Multiply: "/",
    cst.Divide: "*",
    cst.FloorDivide: "*",
    cst.Modulo: "*",
    cst.Power: "*",
    cst.BitAnd: "|",
    cst.BitOr: "&",
    cst.LeftShift: ">>",
    cst.RightShift: "<<",
    cst.AddAssign: "-=",
    cst.SubtractAssign: "+=",
    cst.MultiplyAssign: "/=",
    cst.DivideAssign: "*=",
}


def _arithmetic(node: cst.CSTNode) -> Iterator[Change]:
    if isinstance(node, cst.BinaryOperation):
        texts = (cst.SimpleString, cst.ConcatenatedString, cst.FormattedString, cst.List)
        if isinstance(node.left, texts) or isinstance(node.right, texts):
            return
        if (new := _ARITHMETIC.get(type(node.operator))) is not None:
            yield node, f"({code(node.left)} {new} {code(node.right)})"
    elif isinstance(node, cst.AugAssign) and (new := _ARITHMETIC.get(type(node.operator))) is not None:
        yield node, f"{code(node.target)} {new} {code(node.value)}"
    elif isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus | cst.Not):
        yield node, f"({code(node.expression)})"


def _dropped(node: cst.CSTNode) -> Iterator[Change]:
    """Drop a statement.

    Assignments of names are not dropped here, since only the walk knows which names had a value before.
    """
    if isinstance(node, cst.Assign) and any(isinstance(target.target, cst.Name | cst.Tuple) for target in node.targets):
        return
    if isinstance(node, cst.AnnAssign) and (node.value is None or isinstance(node.target, cst.Name)):
        return
    if isinstance(node, cst.Expr) and not isinstance(node.value, cst.Call):
        return
    yield node, "pass"


def _returned(node: cst.CSTNode) -> Iterator[Change]:
    assert isinstance(node, cst.Return)
    if node.value is not None and code(node.value) != "None":
        yield node, "return None"


def _jumped(node: cst.CSTNode) -> Iterator[Change]:
    yield node, "continue" if isinstance(node, cst.Break) else "break"


def _constant(node: cst.CSTNode) -> Iterator[Change]:
    if (new := changed_constant(node)) is not None:
        yield node, new


def changed_constant(node: cst.CSTNode) -> str | None:
    """Return another value for a number or a truth value; None for other nodes."""
    if isinstance(node, cst.Name) and node.value in ("True", "False"):
        return "False" if node.value == "True" else "True"
    if isinstance(node, cst.Integer):
        return str(node.evaluated_value + 1)
    if isinstance(node, cst.Float):
        value: float = node.evaluated_value
        return repr(value * 2.0 if value else 1.0)
    return None


def _argument_dropped(node: cst.CSTNode) -> Iterator[Change]:
    assert isinstance(node, cst.Call)
    for place, argument in enumerate(node.args):
        if argument.keyword is not None:
            rest = [*node.args[:place], *node.args[place + 1 :]]
            yield node, f"{code(node.func)}({_arguments(rest)})"


#: Functions whose first two arguments are interchangeable.
_SYMMETRIC = frozenset({"max", "min", "maximum", "minimum", "isclose", "isinstance", "issubclass", "hasattr", "equal"})


def _arguments_swapped(node: cst.CSTNode) -> Iterator[Change]:
    assert isinstance(node, cst.Call)
    plain = [argument for argument in node.args if argument.keyword is None and not argument.star]
    if code(node.func).rpartition(".")[2] in _SYMMETRIC or len(plain) < 2:
        return
    left, right = plain[:2]
    if code(left.value) != code(right.value):
        rest = [right, left, *(argument for argument in node.args if argument is not left and argument is not right)]
        yield node, f"{code(node.func)}({_arguments(rest)})"


def _arguments(arguments: list[cst.Arg]) -> str:
    words = []
    for argument in arguments:
        name = f"{argument.keyword.value}=" if argument.keyword is not None else argument.star
        words.append(f"{name}{code(argument.value)}")
    return ", ".join(words)


OPERATORS = (
    Operator("condition negated", "`if a:` becomes `if not (a):`", (cst.If, cst.IfExp, cst.While), _negated),
    Operator("condition always true", "`if a:` becomes `if True:`", (cst.If, cst.IfExp), _always),
    Operator("condition never true", "`if a:` becomes `if False:`", (cst.If, cst.IfExp, cst.While), _never),
    Operator(
        "comparison changed", "`<` becomes `<=`, `==` becomes `!=`, `is` becomes `is not`", (cst.Comparison,), _compared
    ),
    Operator("and and or exchanged", "`a and b` becomes `a or b`", (cst.BooleanOperation,), _and_or),
    Operator(
        "arithmetic changed",
        "`a + b` becomes `a - b`, `-a` becomes `a`",
        (cst.BinaryOperation, cst.AugAssign, cst.UnaryOperation),
        _arithmetic,
    ),
    Operator(
        "statement dropped",
        "`self.x = y`, `f()`, `raise` and `del` become `pass`",
        (cst.Expr, cst.Assign, cst.AnnAssign, cst.AugAssign, cst.Raise, cst.Del),
        _dropped,
    ),
    Operator("nothing returned", "`return a` becomes `return None`", (cst.Return,), _returned),
    Operator("break and continue exchanged", "`break` becomes `continue`", (cst.Break, cst.Continue), _jumped),
    Operator(
        "constant changed", "`1` becomes `2`, `True` becomes `False`", (cst.Name, cst.Integer, cst.Float), _constant
    ),
    Operator("argument dropped", "`f(a, b=c)` becomes `f(a)`", (cst.Call,), _argument_dropped),
    Operator("arguments swapped", "`f(a, b)` becomes `f(b, a)`", (cst.Call,), _arguments_swapped),
)
#: Operators for which the walk needs more than the node. See `walk`.
PLACED = {
    "assignment dropped": "`x = f(x)` becomes `pass`, if `x` has a value already",
    "early return": "a function returns None at once",
    "with left out": "`with a:` becomes `if True:`",
    "finally skipped": "the body of `finally` becomes `pass`",
    "finally without an exception only": "`finally:` becomes `except (): pass` and `else:`",
    "default changed": "`def f(a=1)` becomes `def f(a=2)`",
}
