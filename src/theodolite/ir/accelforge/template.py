"""Jinja in an AccelForge file, filled in without trusting it.

Only a part of Jinja is read: values, `set`, `if`, `for`, arithmetic on numbers and a few filters.  Nothing that reaches
an attribute, calls anything but `range` or `dict`, or builds long strings; every pass of a loop and every character
that comes out is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jinja2 import StrictUndefined, nodes
from jinja2.exceptions import TemplateError, TemplateSyntaxError
from jinja2.sandbox import SandboxedEnvironment

from theodolite.errors import TextError, Unsupported
from theodolite.ir.accelforge.expression import ExpressionError, bounded, power

MAX_CHARS = 256 * 1024
MAX_PASSES = 20_000
MARKS = ("{{", "{%", "{#")
FILTERS = ("default", "d", "int", "float", "abs", "round", "length", "upper", "lower")
CALLS = ("range", "dict", "_each")
READ = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.Name,
    nodes.Const,
    nodes.Filter,
    nodes.Test,
    nodes.If,
    nodes.For,
    nodes.Assign,
    nodes.Call,
    nodes.CondExpr,
    nodes.Compare,
    nodes.Operand,
    nodes.And,
    nodes.Or,
    nodes.Not,
    nodes.Neg,
    nodes.Pos,
    nodes.Add,
    nodes.Sub,
    nodes.Mul,
    nodes.Div,
    nodes.FloorDiv,
    nodes.Mod,
    nodes.Pow,
    nodes.List,
    nodes.Tuple,
    nodes.Dict,
    nodes.Pair,
    nodes.Keyword,
)


class _Environment(SandboxedEnvironment):
    """The sandbox, with arithmetic on numbers alone: strings and lists could grow without a bound."""

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if not all(isinstance(side, (int, float)) for side in (left, right)):
            raise TemplateError(f"{operator} takes two numbers")
        if operator == "**":
            return power(left, right)
        return bounded(super().call_binop(context, operator, left, right))


def fill(text: str, where: str, variables: Mapping[str, Any]) -> str:
    """The text with its templates filled in from `variables`; TextError or Unsupported names the file and the line."""
    if not any(mark in text for mark in MARKS):
        return text
    environment = _Environment(undefined=StrictUndefined, autoescape=False)
    passes = iter(range(MAX_PASSES))

    def each(items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            if next(passes, None) is None:
                raise TemplateError(f"its loops make more than {MAX_PASSES} passes")
            yield item

    environment.globals = {"range": range, "dict": dict, "_each": each}
    try:
        tree = environment.parse(text)
        _check(tree, where)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Call(nodes.Name("_each", "load", lineno=loop.lineno), [loop.iter], [], None, None,
                                   lineno=loop.lineno)  # fmt: skip
        return _render(environment.from_string(tree).generate(dict(variables)))
    except TemplateSyntaxError as error:
        raise TextError(f"{where}, line {error.lineno}: {_line(error.message)}") from error
    except (TemplateError, ExpressionError, ArithmeticError, TypeError, ValueError, RecursionError) as error:
        raise TextError(f"{where}: a template cannot be filled in: {_line(error)}") from error


def _render(pieces: Iterable[str]) -> str:
    out: list[str] = []
    chars = 0
    for piece in pieces:
        chars += len(piece)
        if chars > MAX_CHARS:
            raise TemplateError(f"it makes more than {MAX_CHARS} characters")
        out.append(piece)
    return "".join(out)


def _check(tree: nodes.Template, where: str) -> None:
    waiting: list[tuple[nodes.Node, int]] = [(tree, 0)]
    while waiting:
        node, depth = waiting.pop()
        what = _refused(node)
        if what is None and depth > 60:
            what = "templates nested this deeply"
        if what is not None:
            raise Unsupported(f"{where}, line {node.lineno}: {what} in a template: use values, set, if, for and range")
        waiting += [(child, depth + 1) for child in node.iter_child_nodes()]


def _refused(node: nodes.Node) -> str | None:
    if not isinstance(node, READ):
        return type(node).__name__.lower()
    if isinstance(node, nodes.Filter) and node.name not in FILTERS:
        return f"filter {node.name!r}"
    if isinstance(node, nodes.Name) and node.name.startswith("_"):
        return f"the name {node.name!r}"
    if isinstance(node, nodes.Call) and not (isinstance(node.node, nodes.Name) and node.node.name in CALLS):
        return "a call"
    if isinstance(node, nodes.For) and node.recursive:
        return "a recursive loop"
    return None


def _line(message: object) -> str:
    return " ".join(str(message).split())[:200]
