"""Complete prefix caching of Qwen3.8-Flash-Next for SGLang."""

__version__ = "0.1.0"
