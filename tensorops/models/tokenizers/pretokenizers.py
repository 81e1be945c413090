r"""How byte-level BPE vocabularies cut a text into words before they merge bytes: ``tokenizer.ggml.pre``.

The patterns are those of the models' own ``tokenizer.json``. Where llama.cpp has simplified one, because its regular
expressions know no ``\p{Lu}`` or ``\p{M}``, the model was trained with the pattern here.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RULES", "Rule"]


@dataclass(frozen=True)
class Rule:
    """Patterns that cut a text one after the other; what lies between two matches is a word as well.

    Parameters
    ----------
    patterns : tuple of str
        Regular expressions in the syntax of Oniguruma.
    whole_words : bool
        A word that is a token needs no merges.
    add_bos : bool
        A text begins with the beginning token unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False


CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
LLAMA3 = rf"{CONTRACTION}|{WORD}|\p{{N}}{{1,3}}|{SIGNS}|{SPACES}"
QWEN2 = rf"{CONTRACTION}|{WORD}|\p{{N}}|{SIGNS}|{SPACES}"
QWEN35 = rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACES}"
# Words in which no capital follows a small letter.
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CAMEL = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*")
TEKKEN = rf"{CAMEL[0]}|{CAMEL[1]}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
GPT4O = rf"{CAMEL[0]}{CONTRACTION}?|{CAMEL[1]}{CONTRACTION}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    + SPACES,
)
DEEPSEEK_HAN = "[一-龥ࠀ-一가-\ud7ff]+"
# The letters with two cases, as this vocabulary's rule lists them: some of those that Unicode has.
CASED = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ"
    "\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-"
    "Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
DEEPSEEK_LLM = (r"[\r\n]", rf"\s?[{CASED}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", DEEPSEEK_HAN, r"\p{N}+")

_ROWS = (
    (
        "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe gigachat a.x-4.0 mellum "
        "modern-bert exaone4 mpt olmo jais trillion granite-docling",
        Rule((GPT2,)),
    ),
    (
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
        Rule((r"\p{N}", GPT2)),
    ),
    # The rule for a file that names none.
    ("default", Rule((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))),
    ("falcon", Rule((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"))),
    (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        Rule((LLAMA3,), whole_words=True, add_bos=True),
    ),
    ("glm4 glm5", Rule((LLAMA3,), whole_words=True)),
    ("chatglm-bpe dbrx smaug-bpe", Rule((LLAMA3,))),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2", Rule((QWEN2,))),
    ("qwen35", Rule((QWEN35,))),
    ("tekken", Rule((TEKKEN,), whole_words=True, add_bos=True)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", Rule((GPT4O,))),
    ("granite-embed-multi-97m", Rule((GPT4O,), whole_words=True)),
    ("deepseek-llm", Rule(DEEPSEEK_LLM)),
    ("deepseek-coder", Rule((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_HAN, r"\p{N}"))),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", Rule(DEEPSEEK3)),
    ("seed-coder", Rule((rf"{CONTRACTION}|{WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{SPACES}",))),
    (
        "bailingmoe bailingmoe2 llada-moe",
        Rule((rf"'(?i:[sdmt]|ll|ve|re)|{WORD}|\p{{N}}|{SIGNS}|\s*[\r\n]|\s+(?!\S)|\s+",)),
    ),
    ("minicpm5", Rule((r"\p{N}{1,3}", rf"{CONTRACTION}|{WORD}|\p{{N}}+|{SIGNS}|{SPACES}"), whole_words=True)),
    (
        "exaone-moe",
        Rule(
            (
                rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
                r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
            )
        ),
    ),
)
RULES = {name: rule for names, rule in _ROWS for name in names.split()}
