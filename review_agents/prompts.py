"""All words that models are told, one Jinja template a message; undefined names are errors."""

import traceback
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, TemplateNotFound, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment


class BrokenTemplate(ValueError):
    """A template of a person cannot be rendered."""


def render(template: str, **values: Any) -> str:
    """`templates/TEMPLATE.j2` with the values, white space at both ends taken off."""
    return environment().get_template(f"{template}.j2").render(values).strip()


def render_text(source: str, **values: Any) -> str:
    """The same with a template that a person wrote, which may include ours by name. Raises `BrokenTemplate`."""
    try:
        return environment(sandboxed=True).from_string(source).render(values).strip()
    except TemplateSyntaxError as error:
        raise BrokenTemplate(f"line {error.lineno}: {error.message}") from None
    except TemplateNotFound as error:
        raise BrokenTemplate(f"{line_of(error)}there is no template {error.name!r}") from None
    except Exception as error:  # an undefined name, or an expression that fails in a way of its own
        raise BrokenTemplate(f"{line_of(error)}{error or type(error).__name__}") from None


def line_of(error: Exception) -> str:
    """Where in a person's template, as Jinja writes it into the traceback."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
    return f"line {lines[-1]}: " if lines else ""


@cache
def environment(*, sandboxed: bool = False) -> Environment:
    kind = ImmutableSandboxedEnvironment if sandboxed else Environment
    return kind(
        loader=PackageLoader("review_agents", "templates"),
        autoescape=False,  # plain text; what is foreign in it went through visible.quoted
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
