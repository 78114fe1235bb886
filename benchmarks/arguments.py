"""What the command lines of benchmarks against running servers have in common."""

from __future__ import annotations

import argparse
from typing import NoReturn

from sglang_qsa.errors import REFUSED


class OneLineParser(argparse.ArgumentParser):
    """Ends on a bad argument with one line and exit code 2."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(
            prog,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        self.exit(REFUSED, f"{self.prog}: {message}; --help lists the arguments\n")


def add_servers(parser: argparse.ArgumentParser) -> None:
    """One running server or two, and how long they may be silent."""
    add = parser.add_argument_group("servers").add_argument
    add("--url", type=url, required=True, help="a running SGLang server")
    add("--url-baseline", type=url, help="another one, to compare with")
    add("--name", default="ours")
    add("--name-baseline", default="stock")
    add("--timeout-s", type=factor, default=300.0, help="longest silence of a server")


def addresses(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Name and address of each server of `add_servers`."""
    found = [(options.name, options.url)]
    if options.url_baseline:
        found.append((options.name_baseline, options.url_baseline))
    return found


def url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"found {text!r}; wanted http://HOST:PORT")
    return text.rstrip("/")


def natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"found {text!r}; wanted 0 or more")
    return int(text)


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}; wanted 1 or more")
    return int(text)


def factor(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"found {text!r}; wanted a number above 0")
    return value


def vocabulary(text: str) -> range:
    low, _, high = text.partition(":")
    if not (low.isdecimal() and high.isdecimal() and int(low) < int(high)):
        raise argparse.ArgumentTypeError(f"found {text!r}; wanted LOW:HIGH")
    return range(int(low), int(high))
