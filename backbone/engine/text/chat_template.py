"""Renders messages to a prompt by the model file's chat template, in a bounded sandbox.

Neither the template nor the messages are trusted: only JSON values go in, only text comes out, and every failure is a
RequestError that names the cause. It never tokenises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import jinja2
from jinja2.exceptions import SecurityError, TemplateError

from backbone.engine.text.template_budget import MAX_LENGTH, template_budget
from backbone.engine.text.template_sandbox import BoundedEnvironment
from backbone.engine.text.tokenizer import Tokenizer
from kvasir.errors import RequestError

MAX_TEMPLATE_LENGTH = 1 << 18
_DATE_FORMAT = re.compile(r"(?:%-?[A-Za-z%]|[^%]){0,100}")
# Errors that a template's computations can raise, besides Jinja's own.
_COMPUTING = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)

Clock = Callable[[], datetime]


class _RefusedByTemplateError(TemplateError):
    """The template called `raise_exception`."""


def system_clock() -> datetime:
    """Return the current time, for templates that write the date into the prompt."""
    return datetime.now(UTC)


class ChatTemplate:
    """One model's chat template, compiled once. Thread-safe."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "", clock: Clock = system_clock) -> None:
        """Compile the template. Raises RequestError when it is too long or invalid."""
        if len(source) > MAX_TEMPLATE_LENGTH:
            raise RequestError(
                f"the chat template has {len(source)} characters; at most {MAX_TEMPLATE_LENGTH} are allowed"
            )
        self._fixed = {"bos_token": bos_token, "eos_token": eos_token}
        self._clock = clock
        environment = BoundedEnvironment()
        environment.globals |= {"raise_exception": _raise_exception, "strftime_now": self._strftime_now}
        try:
            with template_budget():
                self._template: jinja2.Template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise RequestError(f"the chat template is wrong in line {error.lineno}: {error.message}") from error
        except _COMPUTING as error:
            raise RequestError(f"the chat template cannot be compiled: {_describe(error)}") from error

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, object], tokenizer: Tokenizer, *, clock: Clock = system_clock
    ) -> ChatTemplate:
        """Compile the template at `tokenizer.chat_template`. Raises RequestError when the file has none."""
        source = metadata.get("tokenizer.chat_template")
        if not isinstance(source, str) or not source.strip():
            raise RequestError(
                "this model has no chat template (tokenizer.chat_template), so it cannot take messages; "
                "send it a plain prompt, or use a GGUF file of a chat model"
            )
        texts = tokenizer.vocabulary.texts
        bos, eos = (texts[token] if token is not None else "" for token in (tokenizer.bos_id, tokenizer.eos_id))
        return cls(source, bos_token=bos, eos_token=eos, clock=clock)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Return the prompt, to be tokenised with `parse_special` and without `add_special`.

        `variables` are further names for the template, such as `enable_thinking`. Raises RequestError when messages are
        not JSON objects with a role, when the template refuses them or fails, or when the prompt grows too long.
        """
        values = {
            **_json_values(dict(variables or {}), "variables"),
            **self._fixed,
            **_json_values({"messages": list(messages), "tools": list(tools) if tools else None}, "messages"),
            "add_generation_prompt": bool(add_generation_prompt),
        }
        _check_roles(messages)
        try:
            with template_budget():
                return self._bounded(values)
        except _RefusedByTemplateError as error:
            raise RequestError(f"the model's chat template refuses these messages: {error.message}") from error
        except SecurityError as error:
            raise RequestError(f"the chat template was stopped: {error.message}") from error
        except (TemplateError, *_COMPUTING) as error:
            raise RequestError(f"the chat template failed on these messages: {_describe(error)}") from error

    def _bounded(self, values: Mapping[str, object]) -> str:
        parts: list[str] = []
        length = 0
        for part in self._template.generate(**values):
            length += len(part)
            if length > MAX_LENGTH:
                raise SecurityError(f"the prompt grew beyond {MAX_LENGTH} characters")
            parts.append(part)
        return "".join(parts)

    def _strftime_now(self, date_format: str) -> str:
        if not _DATE_FORMAT.fullmatch(date_format):
            raise SecurityError(f"strftime_now was given {date_format[:40]!r}, which is not a plain date format")
        return self._clock().strftime(date_format)


def _raise_exception(message: object) -> str:
    raise _RefusedByTemplateError(str(message)[:500])


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}"


def _json_values(values: dict[str, object], what: str) -> dict[str, object]:
    """Return a deep copy of JSON values, so that the template reaches no other object."""
    try:
        copied: dict[str, object] = json.loads(json.dumps(values, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"{what} must be JSON values: {error}") from error
    return copied


def _check_roles(messages: Sequence[Mapping[str, object]]) -> None:
    if not messages:
        raise RequestError("messages is empty; a chat needs at least one message")
    for index, message in enumerate(messages):
        role = message.get("role") if isinstance(message, Mapping) else None
        if not isinstance(role, str):
            raise RequestError(f"messages[{index}] has the role {role!r}; it must be a string such as 'user'")
