"""A Jinja environment for templates that come out of a model file, hence from a stranger.

Called by `chat_template` alone. On top of Jinja's immutable sandbox it bounds what a template may cost: loop rounds, calls
and handled characters count against one budget a rendering, strings and numbers cannot grow without end, and of filters,
globals and string methods only those remain that chat templates use. It never sees the network, files or Python objects
other than JSON values.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_STEPS = 200_000
MAX_LENGTH = 1 << 22  # of a string or list that a template builds
MAX_INTEGER_BITS = 128
_CHARACTERS_A_STEP = 256
_MAX_INDENT = 64

_FILTERS = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "groupby", "indent", "int",
    "items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse",
    "safe", "select", "selectattr", "sort", "string", "sum", "title", "tojson", "trim", "unique", "upper",
)  # fmt: skip
_GLOBALS = ("range", "dict", "namespace", "cycler", "joiner")
_STRING_METHODS = frozenset((
    "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit",
    "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "lower", "lstrip", "partition", "removeprefix",
    "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith",
    "strip", "swapcase", "title", "upper",
))  # fmt: skip
_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(?:\*|\d{3})")

_steps_left: ContextVar[int] = ContextVar("steps_left", default=MAX_STEPS)


@contextmanager
def template_budget(n_steps: int = MAX_STEPS) -> Iterator[None]:
    """Everything that a template does inside counts against a fresh budget."""
    token = _steps_left.set(n_steps)
    try:
        yield
    finally:
        _steps_left.reset(token)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja with a budget; use it inside `template_budget`."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # nothing is computed before the budget counts
            cache_size=0,
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
        )
        special = {"join": _join, "replace": _replace, "indent": _indent, "tojson": _to_json}
        known = self.filters
        self.filters = {name: _counted(special.get(name, known[name])) for name in _FILTERS}
        self.filters |= {_ROUNDS: _count_rounds, _CONCAT: _concat}
        self.globals = {name: self.globals[name] for name in _GLOBALS}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template: nodes.Template = _BoundLoops(self).visit(super()._parse(source, name, filename))
        return template

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Of a string's methods only those that cannot blow it up."""
        if isinstance(obj, str) and attr not in _STRING_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Count a call: of a macro, a method, a global, or a recursive loop."""
        owner = getattr(obj, "__self__", None)
        _charge(_length(owner))
        name = getattr(obj, "__name__", "")
        if isinstance(owner, str) and name == "join":
            return _join(*args, d=owner, **kwargs)
        if isinstance(owner, str) and name == "replace":
            return _replace(owner, *args, **kwargs)
        return super().call(context, obj, *args, **kwargs)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Count a slice by the length of what is sliced."""
        if isinstance(argument, slice):
            _charge(_length(obj))
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse sums, products, powers and formats whose result would be too large."""
        if operator == "+":
            _check_length(_length(left) + _length(right))
        elif operator == "%" and isinstance(left, str):
            if _WIDE_FORMAT.search(left):
                raise SecurityError(f"the format {left[:40]!r} asks for a wide field")
        elif operator == "*":
            _check_product(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * abs(right))
        return super().call_binop(context, operator, left, right)


_ROUNDS = " count rounds"  # no template can spell a filter with a blank in its name
_CONCAT = " concat"


class _BoundLoops(NodeTransformer):
    """Leads each loop's items and each `~` through a filter that counts."""

    def __init__(self, environment: BoundedEnvironment) -> None:
        self._environment = environment

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - Jinja's naming
        self.generic_visit(node)
        node.iter = self._filter(node.iter, _ROUNDS)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - Jinja's naming
        self.generic_visit(node)
        return self._filter(nodes.List(node.nodes, lineno=node.lineno), _CONCAT)

    def _filter(self, node: nodes.Expr, name: str) -> nodes.Filter:
        return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno, environment=self._environment)


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training; for rendering it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _charge(n_characters: int = 0) -> None:
    left = _steps_left.get() - 1 - n_characters // _CHARACTERS_A_STEP
    if left < 0:
        raise SecurityError("the template does too much work (loops, calls or text)")
    _steps_left.set(left)


def _length(value: object) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple | dict) else 0


def _check_length(length: int) -> None:
    _charge(length)
    if length > MAX_LENGTH:
        raise SecurityError(
            f"the template builds a text or list of {length} elements; at most {MAX_LENGTH} are allowed"
        )


def _check_bits(n_bits: int) -> None:
    if n_bits > MAX_INTEGER_BITS:
        raise SecurityError(f"the template computes a number of about {n_bits} bits; {MAX_INTEGER_BITS} are allowed")


def _check_product(left: object, right: object) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
    elif isinstance(right, int):
        _check_length(_length(left) * max(right, 0))
    elif isinstance(left, int):
        _check_length(_length(right) * max(left, 0))


def _counted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that counts by the length of what it is given."""
    first = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        _charge(_length(args[first]) if len(args) > first else 0)
        return function(*args, **kwargs)

    return counted


def _count_rounds(items: Iterable[Any]) -> list[Any]:
    if isinstance(items, Sized):
        _check_rounds(len(items))
    rounds = []
    for item in items:
        _charge()
        rounds.append(item)
    return rounds


def _check_rounds(n_rounds: int) -> None:
    if n_rounds > _steps_left.get():
        raise SecurityError(f"the template loops over {n_rounds} items; that is too much work")


def _concat(parts: list[Any]) -> str:
    texts = [str(part) for part in parts]
    _check_length(sum(map(len, texts)))
    return "".join(texts)


def _join(value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
    if attribute is not None:
        value = [item[attribute] if isinstance(item, Mapping) else "" for item in value]
    texts = [str(item) for item in value]
    _check_length(sum(map(len, texts)) + len(d) * len(texts))
    return d.join(texts)


def _replace(value: object, old: object, new: object, count: int | None = None) -> str:
    text, before, after = str(value), str(old), str(new)
    n_found = text.count(before) if count is None or count < 0 else min(count, text.count(before))
    _check_length(len(text) + n_found * max(0, len(after) - len(before)))
    return text.replace(before, after, n_found)


def _indent(value: object, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    margin = width if isinstance(width, str) else " " * min(max(width, 0), _MAX_INDENT)
    lines = str(value).splitlines(keepends=True)
    _check_length(sum(map(len, lines)) + len(margin) * len(lines))
    indented = [margin + line if blank or line.strip() else line for line in lines]
    if lines and not first:
        indented[0] = lines[0]
    return "".join(indented)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as chat templates expect it: not escaped for HTML, other scripts as they are."""
    if indent is not None and not 0 <= indent <= _MAX_INDENT:
        raise TemplateRuntimeError(f"tojson indents by {indent}; 0 to {_MAX_INDENT} are allowed")
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    _check_length(len(text))
    return text
