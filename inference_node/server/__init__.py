"""The OpenAI-compatible door: wire shapes in, events out. It knows the engine by `engine.api` alone."""
