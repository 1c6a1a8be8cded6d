"""Jinja in an AccelForge file, filled in without trusting it.

Only a part of Jinja is read: values, `set`, `if`, `for`, arithmetic on numbers and a few filters.  Nothing that reaches
an attribute, calls anything but `range`, or builds long strings or nested lists; what loops and ranges do and every
character that comes out is counted.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jinja2 import StrictUndefined, nodes
from jinja2.exceptions import TemplateError, TemplateSyntaxError
from jinja2.filters import do_round
from jinja2.sandbox import SandboxedEnvironment

from theodolite.errors import TextError, Unsupported
from theodolite.ir.accelforge.expression import ExpressionError, bounded, power

MAX_CHARS = 256 * 1024
MAX_STEPS = 1_000_000  # nodes visited by passes of loops, and elements of ranges: about a second
MAX_NODES = 30_000  # of a template: Jinja takes about two seconds to compile them
MAX_STRING = 200  # characters of a string in an expression
MAX_ITEMS = 16  # of a list that a name holds
MAX_DIGITS = 30  # to which a number is rounded
MARKS = ("{{", "{%", "{#")
FILTERS = ("default", "d", "int", "float", "abs", "round", "length", "upper", "lower")
CALLS = ("range",)
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
    environment.filters["round"] = _round
    environment.globals = dict(_counted(MAX_STEPS))
    try:
        tree = environment.parse(text)
        _check(tree, where)
        _hold(tree)
        return _render(environment.from_string(tree).generate(dict(variables)))
    except TemplateSyntaxError as error:
        raise TextError(f"{where}, line {error.lineno}: {_line(error.message)}") from error
    except (SyntaxError, MemoryError, RecursionError) as error:  # what Python says of a template nested too deeply
        raise TextError(f"{where}: a template cannot be filled in: it is nested too deeply") from error
    except (TemplateError, ExpressionError, ArithmeticError, TypeError, ValueError) as error:
        raise TextError(f"{where}{_place(error)}: a template cannot be filled in: {_line(error)}") from error


# ---- bounds ------------------------------------------------------------------------------------------------------
def _counted(most: int) -> Mapping[str, Callable[..., Any]]:
    """What a template may call, `_each` and `_plain` only where `_hold` puts them; together they make `most` steps."""
    left = most

    def spend(steps: int) -> None:
        nonlocal left
        left -= steps
        if left < 0:
            raise TemplateError(f"its loops and ranges make more than {most:,} steps")

    def counted_range(*bounds: int) -> range:
        made = range(*bounds)
        spend(most + 1 if made[most:] else len(made))
        return made

    def each(items: Iterable[Any], nodes_a_pass: int) -> Iterator[Any]:
        for item in items:
            spend(nodes_a_pass)
            yield _plain(item)

    return {"range": counted_range, "_each": each, "_plain": _plain}


def _plain(value: Any) -> Any:
    """A value that a name may hold: lists of lists could double with every line."""
    scalars = value if isinstance(value, (list, tuple)) else (value,)
    if len(scalars) > MAX_ITEMS:
        raise TemplateError(f"a name holds at most {MAX_ITEMS} values, not {len(scalars)}")
    if not all(x is None or isinstance(x, (bool, int, float, str, StrictUndefined)) for x in scalars):
        raise TemplateError("a name holds numbers and words, and no lists of lists or ranges")
    return value


def _round(value: Any, precision: Any = 0, method: Any = "common") -> Any:
    """Jinja's filter, which by itself takes whole numbers to millions of digits."""
    if not isinstance(value, (int, float)) or not isinstance(precision, int) or abs(precision) > MAX_DIGITS:
        raise TemplateError(f"round takes a number, and at most {MAX_DIGITS} digits")
    return do_round(value, precision, method)


def _hold(tree: nodes.Template) -> None:
    """Send the items of each loop and the value of each `set` through the functions that count and look at them."""
    for loop in list(tree.find_all(nodes.For)):
        weight = nodes.Const(1 + sum(1 for _ in loop.find_all(nodes.Node)))
        loop.iter = _call("_each", loop.iter, weight)
    for assign in list(tree.find_all(nodes.Assign)):
        assign.node = _call("_plain", assign.node)


def _call(name: str, *arguments: Any) -> nodes.Expr:
    line = arguments[0].lineno
    return nodes.Call(nodes.Name(name, "load", lineno=line), list(arguments), [], None, None, lineno=line)


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
    for seen in itertools.count():
        if not waiting:
            return
        if seen >= MAX_NODES:
            raise TextError(f"{where}: its templates have more than {MAX_NODES:,} parts")
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
    if isinstance(node, nodes.Const) and isinstance(node.value, str) and len(node.value) > MAX_STRING:
        return f"a string of more than {MAX_STRING} characters"
    if isinstance(node, nodes.Call) and not (isinstance(node.node, nodes.Name) and node.node.name in CALLS):
        return "a call"
    if isinstance(node, (nodes.Call, nodes.Filter, nodes.Test)) and (node.dyn_args or node.dyn_kwargs):
        return "a list of arguments"
    if isinstance(node, nodes.For) and node.recursive:
        return "a recursive loop"
    return None


def _place(error: BaseException) -> str:
    """The line of the template at which filling it in stopped, where that is one: Jinja has it in the traceback."""
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == "<template>"]
    return f", line {lines[-1]}" if lines else ""


def _line(message: object) -> str:
    return " ".join(str(message).split())[:200]
