"""A small tokenizer with Qwen's manners: byte-level pieces, chat and tool tokens at the end, a chat template.

Made here from a few sentences, so that tests need no download. It encodes any text, in more pieces than a real one.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

ADDED = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|unused_0|>",  # an added token that no text uses, as the released files' older mask id is
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
SPECIAL = 4  # the first of ADDED never show in text

TEXT = """
The lamplighter walks the same round every night. He looks at each lamp, notes what is broken, and comes back tomorrow.
def review(repo, commit): return [finding for finding in probes(repo, commit) if finding.confirmed]
A reader opens the README, installs the package, runs its tests and follows the examples. What does not work is written
down with the command that shows it. {"name": "run", "arguments": {"command": "pytest -q", "timeout_s": 60}}
import json, os, sys; from pathlib import Path; class Example: value = 1; print("hello, world")
The answer is in the file, on the line after the one that you are reading now. There is nothing more to it than that.
"""

TEMPLATE = """
{%- macro say(role, text) -%}<|im_start|>{{ role }}\n{{ text }}<|im_end|>\n{%- endmacro -%}
{%- set ns = namespace(last_user=-1, system="") -%}
{%- for message in messages -%}
{%- if message.role == "user" -%}{%- set ns.last_user = loop.index0 -%}{%- endif -%}
{%- if message.role == "system" and loop.first -%}{%- set ns.system = message.content -%}{%- endif -%}
{%- endfor -%}
{%- if tools -%}
{{- "<|im_start|>system\n" -}}
{{- "Tools:\n" -}}
{%- for tool in tools -%}{{- tool | tojson ~ "\n" -}}{%- endfor -%}
{{- "Call: <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>\n" -}}
{{- ns.system ~ "<|im_end|>\n" -}}
{%- elif ns.system -%}{{- "<|im_start|>system\n" ~ ns.system ~ "<|im_end|>\n" -}}{%- endif -%}
{%- for message in messages -%}
{%- if message.role == "system" -%}{%- continue -%}{%- endif -%}
{%- if message.role == "tool" -%}
{%- if loop.first or messages[loop.index0 - 1].role != "tool" -%}{{- "<|im_start|>user" -}}{%- endif -%}
{{- "\n<tool_response>\n" ~ message.content ~ "\n</tool_response>" -}}
{%- if loop.last or messages[loop.index0 + 1].role != "tool" -%}{{- "<|im_end|>\n" -}}{%- endif -%}
{%- elif message.role == "assistant" -%}
{{- "<|im_start|>assistant\n" -}}
{%- if message.reasoning_content and (preserve_thinking or loop.index0 > ns.last_user) -%}
{{- "<think>\n" ~ message.reasoning_content ~ "\n</think>\n\n" -}}
{%- endif -%}
{{- message.content or "" -}}
{%- for call in message.tool_calls or [] -%}
{{- ("\n" if message.content or not loop.first else "") ~ "<tool_call>\n<function=" ~ call.function.name ~ ">\n" -}}
{%- for key, value in call.function.arguments.items() -%}
{{- "<parameter=" ~ key ~ ">\n" ~ (value if value is string else value | tojson) ~ "\n</parameter>\n" -}}
{%- endfor -%}
{{- "</function>\n</tool_call>" -}}
{%- endfor -%}
{{- "<|im_end|>\n" -}}
{%- else -%}
{{- "<|im_start|>" ~ message.role ~ "\n" ~ message.content ~ "<|im_end|>\n" -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- "<|im_start|>assistant\n" -}}
{{- "<think>\n\n</think>\n\n" if enable_thinking is defined and not enable_thinking else "<think>\n" -}}
{%- endif -%}
""".strip()


def write_tokenizer(folder: Path, rows: int, *, spare: int = 8, text: Iterable[str] = ()) -> Any:
    """Save a tokenizer with at most rows - spare ids into a model's folder and return it. text: instead of TEXT."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.decoder = decoders.ByteLevel()
    wanted = rows - spare - len(ADDED)  # a large vocabulary is not filled: these sentences do not hold so many pieces
    pieces.train_from_iterator(
        text or TEXT.splitlines(),
        trainers.BpeTrainer(
            vocab_size=wanted, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        ),
    )
    pieces.add_special_tokens([AddedToken(name, special=True) for name in ADDED[:SPECIAL]])
    pieces.add_tokens([AddedToken(name, special=False) for name in ADDED[SPECIAL:]])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return tokenizer
