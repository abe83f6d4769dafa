"""All words that models are told, one Jinja template a message; undefined names are errors."""

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def render(template: str, **values: Any) -> str:
    """`templates/TEMPLATE.j2` with the values, white space at both ends taken off."""
    return environment().get_template(f"{template}.j2").render(values).strip()


@cache
def environment() -> Environment:
    return Environment(
        loader=PackageLoader("review_agents", "templates"),
        autoescape=False,  # plain text; what is foreign in it went through visible.quoted
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
