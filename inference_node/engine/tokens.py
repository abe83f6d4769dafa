"""A model's tokenizer and chat template, as the engine and its callers use them."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import llguidance.hf
from jinja2.exceptions import TemplateError
from llguidance import LLTokenizer

from inference_node.engine.answer import THINK, THINK_END
from inference_node.engine.calls import CLOSE, OPEN, ToolForm
from inference_node.speculate.seam import NodeError

# Shown as text also where a tokenizer calls them special: the parts of an answer are found by them.
MARKERS = (THINK, THINK_END, OPEN, CLOSE)

# Arguments of the rendering function itself, which a request's template options must not replace.
RESERVED = frozenset(("conversation", "messages", "tools", "documents", "chat_template", "tokenize", "return_dict"))
RESERVED |= {"padding", "truncation", "max_length", "return_tensors", "tokenizer_kwargs", "processor_kwargs"}
RESERVED |= {"add_generation_prompt", "continue_final_message", "return_assistant_tokens_mask", "load_audio_from_video"}


class TemplateRefused(NodeError):
    """The model's chat template does not take these messages."""


class Tokens:
    """Wraps a transformers tokenizer. Safe to use from several threads."""

    def __init__(self, tokenizer: Any, vocab: int, stop_ids: Sequence[int] = ()) -> None:
        """vocab: rows of the model's head, which may be more than the tokenizer has ids. stop_ids: the model's own."""
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._lock = threading.Lock()  # rendering and encoding share state inside the library
        self._bytes: dict[int, bytes] = {}
        added = sorted(self._backend.get_added_tokens_decoder().items())
        self._ids = {token.content: id for id, token in added}
        self._hidden = {id for id, token in added if token.special and token.content not in MARKERS}
        self.controls: tuple[str, ...] = tuple(token.content for _, token in added)
        self.known = max([id for id, _ in added] + [self._backend.get_vocab_size(with_added_tokens=True) - 1]) + 1
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys((*stop_ids, *_eos(tokenizer))))
        self.grammar_tokenizer: LLTokenizer = llguidance.hf.from_tokenizer(
            tokenizer, n_vocab=vocab, eos_token=list(self.stop_ids) or None
        )
        self.specials = frozenset(text for text, id in self._ids.items() if self.grammar_tokenizer.is_special_token(id))
        self.template_text: str = tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else ""
        self.tool_form: ToolForm | None = _tool_form(tokenizer)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text. Raises TemplateRefused with the template's own words."""
        if not self._tokenizer.chat_template:
            raise TemplateRefused("This model has no chat template. Use /v1/completions, or serve a chat model.")
        wrong = sorted(RESERVED & set(options or ()))
        if wrong:
            raise TemplateRefused(f'chat_template_kwargs: "{wrong[0]}" is not an option of the template.')
        try:
            with self._lock:
                return str(
                    self._tokenizer.apply_chat_template(
                        list(messages),
                        tools=list(tools) or None,
                        tokenize=False,
                        add_generation_prompt=add_generation_prompt,
                        **(options or {}),
                    )
                )
        except (TemplateError, TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
            # A template is a program that the model's authors wrote; any of these is its way to refuse.
            raise TemplateRefused(f"The model's chat template does not take these messages: {error}") from error

    def encode(self, text: str, *, begin: bool = False) -> list[int]:
        with self._lock:
            return list(self._backend.encode(text, add_special_tokens=begin).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self.bytes_of(id) for id in ids).decode("utf-8", "replace")

    def bytes_of(self, token: int) -> bytes:
        """The text that a token stands for. Nothing for a control token, and for ids that are none."""
        found = self._bytes.get(token)
        if found is None:
            hidden = token in self._hidden or not 0 <= token < self.known
            found = b"" if hidden else self.grammar_tokenizer.decode_bytes([token])
            self._bytes[token] = found
        return found

    def id_of(self, control: str) -> int | None:
        return self._ids.get(control)


def _eos(tokenizer: Any) -> list[int]:
    eos = tokenizer.eos_token_id
    return [eos] if isinstance(eos, int) else list(eos or ())


def _tool_form(tokenizer: Any) -> ToolForm | None:
    """The form of tool calls that the template teaches the model."""
    templates = tokenizer.chat_template
    text = "\n".join(templates.values()) if isinstance(templates, dict) else (templates or "")
    if "<function=" in text:
        return ToolForm.XML
    if OPEN in text and "arguments" in text:
        return ToolForm.JSON
    return None
