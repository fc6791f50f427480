"""Chat templates render as their models expect, and a hostile one costs an error, not memory, time or the machine."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from backbone.engine.text.chat_template import MAX_TEMPLATE_LENGTH, ChatTemplate
from backbone.engine.text.tokenizer import Tokenizer
from kvasir.errors import RequestError
from tests.oracles.tiny_vocabulary import bpe_metadata

CHATML = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>' ~ '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}
"""
WITH_TOOLS = """
{{- bos_token }}
{%- set ns = namespace(system='', turns=0) %}
{%- macro text(content) %}
    {%- if content is string %}{{ content }}
    {%- else %}
        {%- for part in content if part.type == 'text' %}{{ part.text }}{% if not loop.last %} {% endif %}{% endfor %}
    {%- endif %}
{%- endmacro %}
{%- if messages[0]['role'] == 'system' %}
    {%- set ns.system = text(messages[0].content) %}
    {%- set messages = messages[1:] %}
{%- endif %}
Today: {{ strftime_now('%d %b %Y') }}
{%- if tools %} tools: {% for tool in tools %}{{ tool | tojson }}{{ "," if not loop.last }}{% endfor %}{% endif %}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate user/assistant/user') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- ' [INST] ' + (ns.system ~ ' ' if loop.first and ns.system) ~ text(message.content) + ' [/INST]' }}
    {%- else %}
        {%- generation %} {{ text(message['content']).split('</think>')[-1].lstrip() ~ eos_token }}{% endgeneration %}
    {%- endif %}
    {%- set ns.turns = ns.turns + 1 %}
    {%- if ns.turns > 100 %}{% break %}{% endif %}
{%- endfor %}
"""
USER = {"role": "user", "content": " Hello "}


def clock() -> datetime:
    return datetime(2026, 2, 3, tzinfo=UTC)


def render(source: str, **values: object) -> str:
    return ChatTemplate(source, clock=clock).render([USER], variables=values)


def test_a_chat_is_rendered_turn_by_turn() -> None:
    template = ChatTemplate(CHATML)
    messages = [{"role": "system", "content": "Be kind."}, USER]
    turns = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
    assert template.render(messages) == turns + "<|im_start|>assistant\n"
    assert template.render(messages, add_generation_prompt=False) == turns
    thought = template.render(messages, variables={"enable_thinking": False})
    assert thought == turns + "<|im_start|>assistant\n<think>\n\n</think>\n\n"


def test_macros_namespaces_tools_parts_and_the_date() -> None:
    template = ChatTemplate(WITH_TOOLS, bos_token="<s>", eos_token="</s>", clock=clock)  # noqa: S106 - no password
    messages: list[dict[str, object]] = [
        {"role": "system", "content": "Sei höflich."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Hi"}, {"type": "image"}, {"type": "text", "text": "you"}],
        },
        {"role": "assistant", "content": "<think>x</think> Yes?"},
        {"role": "user", "content": "<b>&"},
    ]
    tools = [{"name": "größe", "q": '"'}, {"name": "b"}]
    assert template.render(messages, tools=tools) == (
        '<s>Today: 03 Feb 2026 tools: {"name": "größe", "q": "\\""},{"name": "b"}'
        " [INST] Sei höflich. Hi you [/INST] Yes?</s> [INST] <b>& [/INST]"
    )
    with pytest.raises(RequestError, match="refuses these messages: roles must alternate"):
        template.render([{"role": "assistant", "content": "x"}])


def test_the_template_of_the_file_gets_the_files_tokens() -> None:
    tokenizer = Tokenizer.from_metadata(bpe_metadata("qwen2"))
    metadata = {"tokenizer.chat_template": "{{ bos_token }}|{{ eos_token }}"}
    assert ChatTemplate.from_metadata(metadata, tokenizer).render([USER]) == "<|endoftext|>|<|im_end|>"


@pytest.mark.parametrize("metadata", [{}, {"tokenizer.chat_template": " "}])
def test_a_model_without_a_template_is_refused_with_what_to_do(metadata: dict[str, object]) -> None:
    tokenizer = Tokenizer.from_metadata(bpe_metadata("qwen2"))
    with pytest.raises(RequestError, match=r"no chat template .* send it a plain prompt"):
        ChatTemplate.from_metadata(metadata, tokenizer)


def test_tojson_takes_the_options_that_templates_use() -> None:
    assert render("{{ {'b': 1, 'a': 'é<'} | tojson(sort_keys=true, separators=(',', ':')) }}") == '{"a":"é<","b":1}'
    assert render("{{ [1] | tojson(indent=2) }}") == "[\n  1\n]"


def test_indent_and_join_work_as_in_jinja() -> None:
    lines = "{% set lines = ['a', '', 'b'] | join('\n') %}"
    assert render(lines + "{{ lines | indent(2) }}") == "a\n\n  b"
    assert render(lines + "{{ lines | indent('> ', first=true, blank=true) }}") == "> a\n> \n> b"
    assert render("{{ [{'n': 1}, {'n': 2}] | join('-', attribute='n') }}") == "1-2"


def test_a_template_changes_no_message_and_keeps_nothing() -> None:
    messages = [dict(USER)]
    template = ChatTemplate("{{ n is defined }}{% set n = 1 %}{% set messages = [] %}")
    assert [template.render(messages), template.render(messages)] == ["False", "False"]
    assert messages == [USER]


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__.__base__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__self__._fixed }}",
    "{{ strftime_now.__func__.__globals__['json'] }}",
    "{{ (messages | map(attribute='__class__') | list)[0].__init__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ self._TemplateReference__context.environment.filters.clear() }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ '{x.__class__}'.format_map({'x': 1}) }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{{ messages[0].pop('role') }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% extends 'x' %}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_there_is_no_way_out_of_the_sandbox(source: str) -> None:
    """Either the template is stopped, or what it reached for is undefined, hence written as nothing."""
    try:
        rendered = render(source)
    except RequestError as error:
        rendered = str(error).partition("the chat template")[0]
    assert rendered == ""


DOUBLING = "{%% set ns = namespace(x=%s) %%}{%% for i in range(99) %%}%s{%% endfor %%}{{ ns.x | length }}"
BOMBS = [
    "{{ 'a' * 10 ** 10 }}",
    "{{ [0] * 10 ** 9 }}",
    "{{ 10 ** 9 * ['x'] }}",
    "{{ 9 ** 9 ** 9 }}",
    "{% set ns = namespace(x=9) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x }}",
    DOUBLING % ("'ab'", "{% set ns.x = ns.x + ns.x %}"),
    DOUBLING % ("[1]", "{% set ns.x = ns.x + ns.x %}"),
    DOUBLING % ("'ab'", "{% set ns.x = ns.x ~ ns.x %}"),
    DOUBLING % ("'ab'", "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
    DOUBLING % ("'ab'", "{% set ns.x = [ns.x, ns.x] | join %}"),
    DOUBLING % ("'ab'", "{% set ns.x = ns.x.join([ns.x, ns.x]) %}"),
    DOUBLING % ("'ab'", "{% set ns.x = ns.x.replace('a', 'aab') %}"),
    DOUBLING % ("'ab'", "{% set ns.x = ns.x | replace('', 'ab') %}"),
    DOUBLING % ("'ab'", "{% set ns.x = '%s%s' % (ns.x, ns.x) %}"),
    DOUBLING % ("'ab'", "{% set ns.x = [ns.x, ns.x] | string %}"),
    DOUBLING % ("'ab'", "{% set ns.x = [ns.x, ns.x] | upper %}"),
    DOUBLING % ("'ab'", "{% set ns.x = [ns.x, ns.x] | tojson %}"),
    "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '{:>999999999}'.format(1) }}",
    "{{ '{:>{}}'.format(1, 999999999) }}",
    DOUBLING % ("'ab'", "{% set ns.x = '{0}{0}'.format(ns.x) %}"),
    "{{ '%*d' % (999999999, 1) }}",
    "{{ 'x'.center(10 ** 9) }}",
    "{{ 'x'.ljust(10 ** 9) }}",
    "{{ 'x' | center(10 ** 9) }}",
    "{{ [1] | batch(10 ** 9, 0) | list }}",
    "{{ lipsum(n=10 ** 6) }}",
    "{{ strftime_now('%999999999d') }}",
    "{{ strftime_now('x' * 1000) }}",
    "{{ range(10 ** 9) | list }}",
    "{% for i in range(10 ** 9) %}{% endfor %}",
    "{% for i in range(9999) %}" * 3 + "x" + "{% endfor %}" * 3,
    "{% for i in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% block b %}{{ self.b() }}{{ self.b() }}{% endblock %}",
    "{% for i in range(90000) %}{{ 'x' * 100 }}{% endfor %}",
]


@pytest.mark.parametrize("source", BOMBS)
def test_a_bomb_does_not_go_off(source: str) -> None:
    """Without the budget these would take all memory or years."""
    with pytest.raises(RequestError, match="the chat template"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for",
        "{{ 1 +",
        "{{ x | nonsense }}",
        "{% for a in b %}" * 30 + "{% endfor %}" * 30,
        "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}",
        "{{ " + "9" * 5000 + " }}",
        "x" * (MAX_TEMPLATE_LENGTH + 1),
    ],
)
def test_what_is_no_template_is_refused(source: str) -> None:
    with pytest.raises(RequestError, match="the chat template"):
        ChatTemplate(source)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages[0].content.foo.bar }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ [1, 'a'] | sort }}", "TypeError"),
    ],
)
def test_a_failing_template_is_named_with_its_error(source: str, expected: str) -> None:
    with pytest.raises(RequestError, match=f"failed on these messages: {expected}"):
        render(source)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([], "messages is empty"),
        ([{"content": "x"}], r"messages\[0\] has the role None"),
        ([{"role": 1}], r"messages\[0\] has the role 1"),
        ([{"role": "user", "content": object()}], "must be JSON values"),
        ([{"role": "user", "content": float("nan")}], "must be JSON values"),
    ],
)
def test_messages_that_do_not_fit_are_refused(messages: list[dict[str, object]], expected: str) -> None:
    with pytest.raises(RequestError, match=expected):
        ChatTemplate(CHATML).render(messages)


def test_a_long_chat_fits_the_budget() -> None:
    messages = [{"role": ("user", "assistant")[n % 2], "content": "word " * 200} for n in range(1000)]
    assert len(ChatTemplate(WITH_TOOLS.replace("> 100", "> 9999"), clock=clock).render(messages)) > 1_000_000
