"""A Jinja environment for templates of model files, which are not trusted.

`chat_template` uses it. On top of Jinja's immutable sandbox it counts a template's work against a budget
(`template_budget`), and keeps only the filters, globals and string methods that chat templates use. A template reaches
no files, no network and no Python objects but JSON values. Comparisons of deeply nested lists are not counted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from backbone.engine.text import template_budget as budget

_TEXT_FILTERS = ("capitalize", "e", "escape", "float", "int", "lower", "safe", "string", "title", "trim", "upper")
_OTHER_FILTERS = (
    "abs", "count", "d", "default", "dictsort", "first", "groupby", "items", "last", "length", "list", "map", "max",
    "min", "reject", "rejectattr", "reverse", "select", "selectattr", "sort", "unique",
)  # fmt: skip
_OWN_FILTERS: dict[str, Callable[..., object]] = {
    "indent": budget.indent,
    "join": budget.join,
    "replace": budget.replace,
    "tojson": budget.to_json,
}
_COUNT_ROUNDS = " count rounds"  # no template can spell a filter with a blank in its name
_CONCAT = " concat"
_GLOBALS = ("cycler", "dict", "joiner", "namespace", "range")
_STRING_METHODS = frozenset((
    "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii",
    "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "lower",
    "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition",
    "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper",
))  # fmt: skip


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja with a budget; use it inside `template_budget.template_budget`."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # no computation at compile time, where the budget does not count
            finalize=budget.checked_output,
            cache_size=0,
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
        )
        known = self.filters
        self.filters = {name: _counted(known[name], is_text=True) for name in _TEXT_FILTERS}
        self.filters |= {name: _counted(known[name], is_text=False) for name in _OTHER_FILTERS}
        self.filters |= _OWN_FILTERS | {_COUNT_ROUNDS: budget.count_rounds, _CONCAT: budget.concat}
        self.globals = {name: self.globals[name] for name in _GLOBALS}

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """Join the output of a macro or a block."""
        return budget.bounded_join(parts)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Allow only those methods of a string whose results are bounded."""
        if isinstance(obj, str) and attr not in _STRING_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Bound `str.format`, which Jinja's own wrapper keeps from reaching attributes."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def bounded(*args: Any, **kwargs: Any) -> str:
            budget.check_brace_format(value.__self__, [*args, *kwargs.values()])
            return wrapped(*args, **kwargs)

        return bounded

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Count a call: of a macro, a method, a global, or a recursive loop."""
        owner = getattr(obj, "__self__", None)
        budget.charge(budget.length_of(owner))
        name = getattr(obj, "__name__", "")
        if isinstance(owner, str) and name == "join":
            (items,) = args
            return budget.join(items, owner)
        if isinstance(owner, str) and name == "replace":
            return budget.replace(owner, *args, **kwargs)
        return super().call(context, obj, *args, **kwargs)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Count a slice by the length of what is sliced."""
        if isinstance(argument, slice):
            budget.charge(budget.length_of(obj))
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse sums, products, powers and formats whose result would be too large."""
        if operator == "+":
            budget.check_length(budget.length_of(left) + budget.length_of(right))
        elif operator == "%" and isinstance(left, str):
            budget.check_format(left, right)
        elif operator == "*":
            budget.check_product(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            budget.check_bits(left.bit_length() * abs(right))
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template: nodes.Template = _BoundNodes(self).visit(super()._parse(source, name, filename))
        return template


class _BoundNodes(NodeTransformer):
    """Pass each loop's items and each `~` through a filter that counts."""

    def __init__(self, environment: BoundedEnvironment) -> None:
        self._environment = environment

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - Jinja's naming
        self.generic_visit(node)
        node.iter = self._filtered(node.iter, _COUNT_ROUNDS)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - Jinja's naming
        self.generic_visit(node)
        return self._filtered(nodes.List(node.nodes, lineno=node.lineno), _CONCAT)

    def _filtered(self, node: nodes.Node, name: str) -> nodes.Filter:
        return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno, environment=self._environment)


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training; rendering ignores it."""

    tags = {"generation"}  # noqa: RUF012 - as the base class declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _counted(function: Callable[..., Any], *, is_text: bool) -> Callable[..., Any]:
    """Wrap a filter so that it counts by the length of its value; a text filter gets text of bounded length."""
    at = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        values = list(args)
        if len(values) > at:
            if is_text and isinstance(values[at], list | tuple | dict):
                values[at] = budget.bounded_text(values[at])
            budget.charge(budget.length_of(values[at]))
        return function(*values, **kwargs)

    return counted
