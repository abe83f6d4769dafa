"""A tokenizer with one token per byte and the control tokens of the Qwen family, and templates that behave like theirs.

Written for these tests; the released templates are longer but make the same cuts: earlier thoughts are dropped at a new
user message, tool results are user turns, arguments are written out from an object.
"""

from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from inference_node.engine.tokens import Tokens
from tests.support.chat_templates import THINKING_TEMPLATE as THINKING_TEMPLATE

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PLAIN = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
VOCAB = 320

PLAIN_TEMPLATE = r"""
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"""


@cache
def toy(template: str = PLAIN_TEMPLATE) -> Tokens:
    return Tokens(toy_tokenizer(template), VOCAB)


@cache
def toy_tokenizer(template: str = PLAIN_TEMPLATE) -> Any:
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: id for id, letter in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIAL)
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in PLAIN])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", chat_template=template)


def ids(text: str) -> list[int]:
    return toy().encode(text)


END = 258  # <|im_end|>
