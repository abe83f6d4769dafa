"""What a page says about one finding, written without the template engine because a page may have 500 of them.

The rules are those of the templates: every text of a repo or model goes through `shown` (or a filter of text.py), so
that nothing in it is invisible or becomes markup. Words of closed lists (severities, states) are ours.
"""

from collections.abc import Sequence
from html import escape
from uuid import UUID

from markupsafe import Markup

from orchestrator.services.views import FindingRow
from orchestrator.web.text import duration, inline, log_text, prose, visible
from review_agents.records import Environment, Network, Place, Ran, Reproduction

NEEDS = {
    Environment.NONE: "",
    Environment.PLAIN: ", with <code>pip install .</code> done",
    Environment.TEST: ", with the package and its test needs installed",
}


def finding_item(finding: FindingRow, key: str, *, review: UUID | None = None, open: bool = False) -> Markup:
    """A finding folded to its title. With the `review` that saw it, the runs of its verification can be unfolded."""
    severity, state, lifecycle = finding.severity, finding.verification_state, finding.lifecycle
    address, title = f"/findings/{finding.id}", shown(finding.title)
    words = state.replace("_", " ")
    late = '<span class="mark persisting">seen late</span>' if finding.seen_late else ""
    reason = (
        f'<p class="small soft">{words.capitalize()}: {shown(finding.verification_reason)}</p>'
        if finding.verification_reason
        else ""
    )
    ignored = f'<p class="small soft">Ignored by the {shown(finding.ignored_by)}</p>' if finding.ignored_by else ""
    by = shown(finding.focus) if finding.focus else f"a {finding.source}"
    return Markup(
        f'<details class="finding {severity}" id="finding-{shown(finding.fingerprint)}"{" open" if open else ""}>'
        f'<summary><span class="title">{inline(finding.title)}</span>'
        f'<span class="where">{finding.kind.capitalize()}{whereabouts(finding.places)}</span>'
        f'<span class="marks"><span class="sev {severity}">{severity.capitalize()}</span>'
        f'<span class="mark {state}">{words}</span><span class="mark {lifecycle}">{lifecycle}</span>{late}</span>'
        f'</summary><div class="body">{reason}{ignored}<div class="prose">{prose(finding.description)}</div>'
        f"{finding_places(finding.places)}{finding_proof(finding, key)}"
        f"{runs_fold(f'/reviews/{review}{address}/runs', title) if review and finding.reproduction else ''}"
        f'<p class="small"><a href="{address}">History and ignoring<span class="unheard"> of {title}</span></a> '
        '<span class="soft">· rule '
        f"<code>{shown(finding.rule)}</code> · found by {by}</span></p></div></details>\n"
    )


def whereabouts(places: Sequence[Place]) -> str:
    if not places:
        return ""
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return f" · <code>{position(places[0])}</code>{more}"


def position(place: Place) -> str:
    return f"{shown(place.file)}:{place.line}" if place.line else shown(place.file)


def finding_places(places: Sequence[Place]) -> Markup:
    """Where it is, with the quoted lines."""
    return Markup(f'<div class="stack">{"".join(map(one_place, places))}</div>')


def one_place(place: Place) -> str:
    symbol = f" in <code>{shown(place.symbol)}</code>" if place.symbol else ""
    quote = f'<pre class="quote">{shown(place.quote)}</pre>' if place.quote else ""
    return f'<div><p class="label"><code>{position(place)}</code>{symbol}</p>{quote}</div>'


def finding_proof(finding: FindingRow, key: str) -> Markup:
    """The command that shows it, to copy; what was expected and observed; the control. `key` is unique on the page."""
    proof = finding.reproduction
    if proof is None:
        words = (
            "A judgement, backed by the quoted lines instead of a command."
            if finding.opinion
            else "It came without a command that shows it."
        )
        return Markup(f'<p class="small soft">{words}</p>')
    network = ", with network" if proof.network is Network.EGRESS else ""
    return Markup(
        f'<div class="stack"><p class="label">See it yourself: in a clone{NEEDS[proof.environment]}{network}</p>'
        f'<div class="copyable"><pre id="run-{shown(key)}" tabindex="0" aria-label="Command that shows the fault">'
        f'{shown(proof.command)}</pre><button type="button" class="small" data-copy="run-{shown(key)}" hidden>Copy'
        '</button></div><div class="said-pair"><div><p class="label">Expected</p>'
        f'<pre>{shown(proof.expected)}</pre></div><div><p class="label">Observed</p>'
        f"<pre>{shown(proof.observed)}</pre></div></div>{control_fold(proof)}{also_fold(finding)}</div>"
    )


def also_fold(finding: FindingRow) -> str:
    """Proofs of other claims that were filed with this one."""
    return "".join(
        f'<details class="more"><summary>Also proved here: {shown(one.title)}</summary>'
        f"<pre>{shown(one.reproduction.command)}</pre></details>"
        for one in finding.also
    )


def control_fold(proof: Reproduction) -> str:
    if proof.control is None:
        return (
            '<p class="small soft">No control: nothing else was run beside it to show that the sandbox is not to '
            "blame.</p>"
        )
    return (
        '<details class="more"><summary>Control: this must succeed in the same sandbox</summary>'
        f"<pre>{shown(proof.control)}</pre></details>"
    )


def runs_fold(address: str, title: str) -> str:
    """A fold that app.js fills when it is opened; without JavaScript the link in it leads to the same."""
    return (
        f'<details class="more" data-fill="{address}"><summary>What the service saw when it ran this itself</summary>'
        f'<p class="small"><a href="{address}">The verification runs<span class="unheard"> of {title}</span></a></p>'
        "</details>"
    )


def verification_runs(
    proof: Reproduction | None, runs: Sequence[Ran], controls: Sequence[Ran], *, open: bool = False
) -> Markup:
    """Each run in a fresh sandbox with its exit status and output, and the control's beside it."""
    parts = []
    for at, ran in enumerate(runs):
        shows = "" if proof is None else ": shows the fault" if proof.symptom.shown_by(ran) else ": does not show it"
        parts.append(one_run(f"Run {at + 1}", ran, shows, open=open and at == 0))
        if at < len(controls):
            verdict = ": as it must" if controls[at].ok else ": failed, too"
            parts.append(one_run(f"Control of run {at + 1}", controls[at], verdict))
    if not parts:
        return Markup('<p class="small soft">No run was kept.</p>')
    return Markup(f'<div class="stack">{"".join(parts)}</div>')


def one_run(name: str, ran: Ran, verdict: str, *, open: bool = False) -> str:
    output = (
        f'<pre class="log" tabindex="0" aria-label="Output of {name.lower()}">{log_text(ran.output)}</pre>'
        if ran.output.strip()
        else '<p class="small soft">It printed nothing.</p>'
    )
    return (
        f'<details class="more"{" open" if open else ""}><summary>{name}: {ran.ending}, {duration(ran.seconds)}'
        f"{verdict}</summary>{output}</details>"
    )


def shown(text: str) -> str:
    """Foreign text as HTML. A plain string, so that no template can take a forgotten escape for markup."""
    return escape(visible(text))
