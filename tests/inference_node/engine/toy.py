"""A tokenizer with one token per byte and the control tokens of the Qwen family, and templates that behave like theirs.

Written for these tests; the released templates are longer but make the same cuts: earlier thoughts are dropped at a new
user message, tool results are user turns, arguments are written out from an object.
"""

from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from inference_node.engine.tokens import Tokens

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PLAIN = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
VOCAB = 320

PLAIN_TEMPLATE = r"""
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"""

THINKING_TEMPLATE = r"""
{%- if tools -%}
{{- '<|im_start|>system\nCall as <function=...>. Tools:\n' -}}
{%- for tool in tools -%}{{- tool | tojson + '\n' -}}{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- endif -%}
{%- set ns = namespace(last=-1) -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
{{- '<|im_start|>assistant\n' -}}
{%- if loop.index0 > ns.last or preserve_thinking -%}
{{- '<think>\n' + (message.reasoning_content or '') + '\n</think>\n\n' -}}
{%- endif -%}
{{- message.content | trim -}}
{%- for call in message.tool_calls or [] -%}
{{- ('\n\n' if loop.first and message.content | trim else '\n' if not loop.first else '') -}}
{{- '<tool_call>\n<function=' + call.function.name + '>\n' -}}
{%- for key, value in call.function.arguments | items -%}
{{- '<parameter=' + key + '>\n' + (value if value is string else value | tojson) + '\n</parameter>\n' -}}
{%- endfor -%}
{{- '</function>\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- elif message.role == 'tool' -%}
{{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' -}}
{%- else -%}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n' -}}
{{- '<think>\n\n</think>\n\n' if enable_thinking is defined and enable_thinking is false else '<think>\n' -}}
{%- endif -%}"""


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
