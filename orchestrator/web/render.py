"""One Jinja environment for all pages: everything escaped, everything visible, undefined names are errors."""

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus
from uuid import UUID

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from orchestrator.web import facts, finding_parts, intervals, plots, sparkline, text
from orchestrator.web.security import CSRF_FIELD, csrf_token, keep_csrf

HERE = Path(__file__).parent
STATIC = HERE / "static"
THEME_COOKIE = "lamplighter_theme"
THEMES = ("auto", "light", "dark")


def page(request: Request, template: str, *, status: int = 200, section: str = "", **values: Any) -> HTMLResponse:
    """The template as an answer. `section` is the address of the navigation entry that it belongs to."""
    token = csrf_token(request)
    answer = HTMLResponse(
        fragment(
            template,
            section=section,
            theme=theme_of(request),
            here=request.url.path + (f"?{request.url.query}" if request.url.query else ""),
            csrf_input=Markup('<input type="hidden" name="{}" value="{}">').format(CSRF_FIELD, token),
            now=request.app.state.shop.clock(),
            account=getattr(request.state, "account", None),
            **values,
        ),
        status,
    )
    keep_csrf(request, answer)
    return answer


def fragment(template: str, **values: Any) -> str:
    """A part of a page, for an event stream; the caller gives all that the template names."""
    return environment().get_template(template).render(values)


def is_ours(address: str) -> bool:
    """Whether it is a path of this site, so that one may be sent there by what a request says."""
    return (
        address.startswith("/")
        and not address.startswith(("//", "/\\"))
        and address.isprintable()
        and address.isascii()
    )


def theme_of(request: Request) -> str:
    theme = request.cookies.get(THEME_COOKIE, "auto")
    return theme if theme in THEMES else "auto"


@cache
def environment() -> Environment:
    env = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=text.finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    env.globals |= {
        "static": static_url,
        "version": our_version(),
        "sparkline": sparkline.sparkline,
        "plot": plots.plot,
        "step_words": plots.step_words,
        "share": plots.share,
        "interval": intervals.interval,
        "interval_side": intervals.side_of,
        "benchmark_link": benchmark_link,
        "profile_link": profile_link,
        "facts": facts,
        "finding_item": finding_parts.finding_item,
        "finding_places": finding_parts.finding_places,
        "finding_proof": finding_parts.finding_proof,
        "verification_runs": finding_parts.verification_runs,
    }
    env.filters |= {
        "ago": text.ago,
        "duration": text.duration,
        "inline": text.inline,
        "log_text": text.log_text,
        "percent": text.percent,
        "prose": text.prose,
        "quantity": text.quantity,
        "short": lambda commit: commit[:10],
        "size": text.size,
        "when": text.when,
        "words": lambda value: str(value).replace("_", " "),
    }
    return env


def benchmark_link(repo_id: UUID, name: str) -> str:
    return f"/repos/{repo_id}/benchmark?name={quote_plus(name)}"


def profile_link(review_id: UUID, name: str) -> str:
    return f"/reviews/{review_id}/profile?name={quote_plus(name)}"


@cache
def static_url(name: str) -> str:
    """The file's address with a hash of its content, so that browsers may keep it for ever."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={digest}"


@cache
def our_version() -> str:
    try:
        return version("lamplighter")
    except PackageNotFoundError:
        return "from source"
