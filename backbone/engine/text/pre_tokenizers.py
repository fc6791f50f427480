"""The patterns by which each `tokenizer.ggml.pre` kind cuts text into words before byte-pair merging.

`tokenizer_bpe` looks them up. The patterns are facts of the models' own tokenizers. An unknown kind is refused, as a
wrong split gives plausible but wrong token ids.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvasir.errors import UnsupportedModelError

_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORDS_WITH_MARKS = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
_SIGNS_WITHOUT_MARKS = r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Patterns that are applied in turn, each to the pieces of the former; matches and gaps both become pieces.

    `ignore_merges`: a piece that is a whole token is not merged. `add_bos`: the default where the file has no value.
    `has_bos`: False where the file's `bos_token_id` is ignored.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    has_bos: bool = True


_LLAMA3_PATTERNS = ("|".join((_CONTRACTIONS, _WORDS, r"\p{N}{1,3}", _SIGNS, _BLANKS)),)
_GPT2_KIND = PreTokenizer((_GPT2,))
_QWEN2_KIND = PreTokenizer(("|".join((_CONTRACTIONS, _WORDS, r"\p{N}", _SIGNS, _BLANKS)),))
_QWEN35_KIND = PreTokenizer(("|".join((_CONTRACTIONS, _WORDS_WITH_MARKS, r"\p{N}", _SIGNS_WITHOUT_MARKS, _BLANKS)),))
_LLAMA3_KIND = PreTokenizer(_LLAMA3_PATTERNS, ignore_merges=True, add_bos=True)
_DBRX_KIND = PreTokenizer(_LLAMA3_PATTERNS)
_GLM4_KIND = PreTokenizer(_LLAMA3_PATTERNS, has_bos=False)
_DEEPSEEK3_KIND = PreTokenizer(
    (
        r"\p{N}{1,3}",
        r"[一-龥぀-ゟ゠-ヿ]+",
        r"[!\x22#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)
_DEFAULT_KIND = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": _DEFAULT_KIND,
    "gpt-2": _GPT2_KIND,
    "olmo": _GPT2_KIND,
    "qwen2": _QWEN2_KIND,
    "deepseek-r1-qwen": _QWEN2_KIND,
    "qwen35": _QWEN35_KIND,
    "llama3": _LLAMA3_KIND,
    "llama-v3": _LLAMA3_KIND,
    "llama-bpe": _LLAMA3_KIND,
    "dbrx": _DBRX_KIND,
    "smaug-bpe": _DBRX_KIND,
    "glm4": _GLM4_KIND,
    "chatglm-bpe": _GLM4_KIND,
    "deepseek-v3": _DEEPSEEK3_KIND,
}


def pre_tokenizer_named(name: str) -> PreTokenizer:
    """Look up a `tokenizer.ggml.pre` kind. Raises UnsupportedModelError that names the kind and those known."""
    kind = PRE_TOKENIZERS.get(name)
    if kind is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise UnsupportedModelError(f"tokenizer.ggml.pre is {name!r}, which is not known here; known are: {known}")
    return kind
