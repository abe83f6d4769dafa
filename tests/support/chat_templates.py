"""Chat templates that behave like released ones, written for these tests: longer ones make the same cuts."""

# Earlier thoughts are dropped at a new message of the user, tool results are user turns, arguments are written out from
# an object.
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
