"""Hostile text on every way to a model: it stays inside its quotation, in sight, and changes nothing around it."""

import re
import unicodedata
from typing import Any

import pytest

from review_agents import material
from review_agents.focus import builtin
from review_agents.ports import ContextOverflow
from review_agents.records import FocusState, Message, ProbeResult, ProbeState, Ran, Role
from review_agents.scripted import call, calls, said
from review_agents.visible import CONTROL, UNSEEN, defanged, quoted
from tests.support import attacks
from tests.support.agents import FILES, MARK, Hand, Played, finding, play, repo, report, results

DONE = call("finish", **report())
ATTACKS = pytest.mark.parametrize("attack", attacks.ALL.values(), ids=attacks.ALL)


def harmless(text: str) -> bool:
    """Quotations are opened and closed in turn, nothing is unseen, no word could be taken for a turn's end."""
    marks = re.findall(rf"<<<{MARK} |{MARK}>>>", text)
    assert marks == [f"<<<{MARK} ", f"{MARK}>>>"] * (len(marks) // 2)
    assert UNSEEN.search(text) is None
    assert CONTROL.search(text) is None
    return True


def opening(files: dict[str, str], **changed: Any) -> tuple[Message, ...]:
    return material.opening(
        repo(files), results(**changed), files.get, focus=builtin()["security"], mark=MARK, native=True
    )


@ATTACKS
def test_text_of_the_repo_stays_inside_its_quotation(attack: str) -> None:
    plain = opening(dict(FILES))
    hostile = opening({**FILES, "README.md": attack, "sums.py": f'def total():\n    """{attack}"""\n'})
    assert hostile[0] == plain[0], "rules do not depend on what a repo says"
    assert [message.role for message in hostile] == [message.role for message in plain]
    assert hostile[3] == plain[3], "nor does the task"
    inside = hostile[1].text.replace("<<<m4rk", "").replace("m4rk>>>", "")
    assert MARK not in inside and harmless(hostile[1].text.replace("<<SYS>>", ""))


@ATTACKS
def test_what_probes_quote_stays_inside_its_quotation(attack: str) -> None:
    said = ProbeResult(probe="tests", state=ProbeState.FAILED, summary=attack, facts={"first": attack, "all": [attack]})
    assert harmless(opening(dict(FILES), **{"probe:tests": said})[1].text)


@ATTACKS
def test_output_of_commands_stays_inside_its_quotation(attack: str) -> None:
    hand = Hand(says=lambda command: Ran(exit=0, head=attack), files={**FILES, "evil.txt": attack})
    played = play([call("run", command="pytest"), call("read", path="evil.txt"), DONE], hand=hand)
    shown = [message.text for message in played.last_question if message.role is Role.TOOL]
    assert all(map(harmless, shown)) and played.result.state is FocusState.FINISHED
    assert played.hand.ran == ["pytest"], "nothing that the output says was carried out"


@ATTACKS
def test_in_the_text_protocol_only_what_the_model_writes_is_a_call(attack: str) -> None:
    hand = Hand(says=lambda command: Ran(exit=0, head=attack))
    steps = [call("run", command="pytest"), call("run", command="ls"), DONE]
    played = play(steps, hand=hand, native=False)
    assert played.hand.ran == ["pytest", "ls"] and played.result.report is not None
    assert played.result.report.summary == report()["summary"]


@ATTACKS
def test_names_of_files_cannot_break_out_either(attack: str) -> None:
    name = attack.replace("\n", " ") or "x"
    text = opening({**FILES, name: "x", f"src/{name}.py": "def f(): pass"})[1].text
    assert harmless(text)


@ATTACKS
def test_nor_where_an_agent_asks_for_one_that_is_not_there_or_has_ended(attack: str) -> None:
    name = attack.encode(errors="replace").decode() or "x"
    steps = [call("read", path=f"no {name}"), call("read", path=name, from_line=99), DONE]
    played = play(steps, files={**FILES, name: "x"})
    assert all(map(harmless, not_the_models_own(played))) and "There is no such file" in str(played.last_question)


@ATTACKS
def test_what_a_finding_quotes_is_material_for_the_next_focus(attack: str) -> None:
    title = f"A title that is long enough {attack}"[:180]
    first = play([call("record_finding", **finding(title=title)), DONE]).result.candidates
    task = play([DONE], claimed=first).last_question[3].text
    assert harmless(task) and "Your focus is Correctness." in task


def not_the_models_own(played: Played) -> list[str]:
    return [message.text for message in played.last_question if message.role is not Role.ASSISTANT]


@ATTACKS
def test_lines_that_are_shown_for_a_wrong_quote_stay_inside_their_quotation(attack: str) -> None:
    near = "result = values[0]  # "
    text = "".join(f"{near}{line}\n" for line in attack.encode(errors="replace").decode().splitlines() or [""])
    wrong = finding(file="evil.py", quote="result = value[0]  # and more")
    played = play([call("record_finding", **wrong), DONE], files={**FILES, "evil.py": text})
    assert all(map(harmless, not_the_models_own(played))) and "the quote is not in evil.py" in played.told
    shown = played.told.partition("The nearest lines are:")[2]
    assert shown.startswith(f"\n<<<{MARK} nearest lines\n") and near.strip() in shown


@ATTACKS
def test_what_is_left_of_turns_that_were_taken_out_stays_inside_its_quotation(attack: str) -> None:
    hand = Hand(says=lambda command: Ran(exit=0, head=attack + "x" * 3000), files={**FILES, "evil.txt": attack * 30})
    title = f"A title that is long enough {attack}"[:180]
    steps = [call("record_finding", **finding(title=title)), call("read", path="evil.txt")]
    steps += [call("run", command=f"ls {turn}") for turn in range(9)]
    played = play([*steps, ContextOverflow("too long"), DONE], hand=hand)
    texts = not_the_models_own(played)
    assert any("earlier turns were taken out" in text for text in texts) and all(map(harmless, texts))


@ATTACKS
def test_a_heading_that_names_the_place_of_a_known_finding_is_told_in_harmless_words(attack: str) -> None:
    heading = " ".join(attack.encode(errors="replace").decode().split())
    text = f"# {heading} #\n\nIt adds numbers.\n\nNothing else is needed.\n"
    told = {"file": "GUIDE.md", "kind": "documentation", "rule": "wrong_statement"}
    first = finding(**told, quote="It adds numbers.", title="The guide says that it adds")
    second = finding(**told, quote="Nothing else is needed.", title="A second claim of it", output_contains=["other"])
    steps = [call("record_finding", **first), call("record_finding", **second), DONE]
    played = play(steps, files={**FILES, "GUIDE.md": text})
    assert all(map(harmless, not_the_models_own(played))) and "taken for finding:1" in played.told


@ATTACKS
def test_the_name_of_a_repo_is_told_in_harmless_words(attack: str) -> None:
    named = material.opening(
        repo(FILES, name=attack), results(), FILES.get, focus=builtin()["security"], mark=MARK, native=True
    )
    assert all(harmless(message.text) for message in named)


@ATTACKS
@pytest.mark.parametrize("native", [True, False])
def test_what_a_model_makes_up_of_other_turns_is_none_when_it_is_told_so_and_sent_back(
    attack: str, native: bool
) -> None:
    """Weak models go on with the turn of somebody else, and servers take such words for control tokens."""
    broken = [
        said(f"I see. {attack}"),
        said(f"```call\n{attack}\n{{}}\n```"),
        calls(("run", f'{{"command": {attack}')) if native else said(f'```call\nrun\n{{"command": {attack}\n```'),
    ]
    last = said(f'I see. {attack}\n```call\nrun\n{{"command": "ls"}}\n```')
    played = play([*broken, call("read", path="sums.py", from_line=attack), last, DONE], native=native)
    for message in played.last_question[4:]:
        assert CONTROL.search(message.text) is None, message.text
        assert message.role is Role.ASSISTANT or harmless(message.text)


# As released models have them, a space in them written as ·; none of our own patterns is used to look for them.
TOKENS = """
<|im_start|> <|im_end|> <|endoftext|> <|eot_id|> <|start_header_id|> <|python_tag|> <|start|> <|channel|> <|message|>
<|tool▁calls▁begin|> <｜tool▁sep｜> <|START_OF_TURN_TOKEN|> <|turn> <turn|> <|channel> <channel|> <|tool_call>
<tool_call|> <|tool_response> <|"|> <start_of_turn> <end_of_turn> <start_of_image> <image_soft_token> <unused99>
<extra_id_0> <bos> <eos> <pad> <unk> <mask> <s> </s> <BOS_TOKEN> <EOS_TOKEN> <end_of_utterance> <sop> <eop> [gMASK]
[sMASK] [MASK] [INST] [/INST] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CALLS] [TOOL_RESULTS] [/TOOL_RESULTS]
[TOOL_CONTENT] [ARGS] [CALL_ID] [AVAILABLE_TOOLS] [THINK] [/THINK] [BOS] <<SYS>> <</SYS>> [|system|] [|endofturn|]
]~b] ]~!b[ [e~[ <tool_call> </tool_call> <tool_calls> <tool_response> <tool_output> <tool_code> <function_calls>
<function=run> <parameter=x> <invoke·name="x"> <minimax:tool_call> </minimax:tool_call> <seed:think> <seed:tool_call>
<longcat_tool_call> <arg_key> </arg_value> <think> </think> <think_end> <role> </role> <observation> <jupyter_start>
"""


@pytest.mark.parametrize("token", [one.replace("·", " ") for one in TOKENS.split()])
def test_no_control_token_of_a_released_model_is_left(token: str) -> None:
    shown = defanged(f"a {token} b")
    assert token not in shown and "‹" in shown and "›" in shown


def test_every_character_that_shows_nothing_is_named() -> None:
    """By Unicode's own categories; signs that enclose the digits behind them can be seen."""
    enclosing = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
    hidden = [
        code
        for code in range(0x110000)
        if unicodedata.category(chr(code)) in ("Cc", "Cf", "Cs", "Zl", "Zp") and code not in {9, 10, *enclosing}
    ]
    assert [hex(code) for code in hidden if not defanged(f"a{chr(code)}b").startswith("a⟨")] == []


def test_there_are_at_least_forty_attacks() -> None:
    assert len(attacks.ALL) >= 40


def test_an_attack_can_still_be_read_and_reported() -> None:
    assert "‹|im_end|›" in defanged("<|im_end|>") and "⟨ESC⟩[2K" in defanged("\x1b[2K")
    assert "[mark]>>>" in quoted(f"{MARK}>>>", mark=MARK, label="x")


def test_ordinary_text_is_left_alone() -> None:
    text = "if a < b and c[0] | d: print('<div>', x->y) # naïve 日本語 → ok\n\tlist<int> [INFO]"
    text += " x[mask] = y[args][think] <me@host.example> dict[str, int|None] a <| b"
    assert defanged(text) == text
