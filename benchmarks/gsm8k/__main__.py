"""Does a tier give the answers that the device gives? Two passes over GSM8K.

    python -m benchmarks.gsm8k --url http://127.0.0.1:30000
        [--data gsm8k|generated|FILE] [--compare answers|tokens] [--concurrency N]
        [--between flush|evict|none] [--restart-command COMMAND] [--out DIR]

Pass 1 asks each question three times: cold, and twice served by the device, of which
the second shows the server's own noise. Then the device is emptied, and pass 2 must
be served by the tier, question by question, from the server's own report. What the
tier gives is compared with what the device gave: right answers where the model can
answer, output tokens where it cannot.

Exit code 0: nothing lost. 1: a loss, or a pass that was not served as it should have
been; the lines say which. 2: it could not be measured. Answers so far are saved.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gsm8k.evaluation import Evaluation
from benchmarks.gsm8k.options import parse
from benchmarks.gsm8k.report import as_markdown, as_result
from benchmarks.gsm8k.verdict import Verdict, judge
from benchmarks.interrupts import INTERRUPTED
from sglang_qsa.errors import REFUSED, QsaError

LOSS = 1


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    try:
        evaluation = Evaluation(options)
    except QsaError as error:
        return _refuse(str(error))
    verdict: Verdict | None = None
    reason = ""
    try:
        evaluation.run()
        verdict = judge(evaluation.answers, options.limits)
    except QsaError as error:
        reason = str(error)
    except KeyboardInterrupt:
        reason = "interrupted"
    path = _write(options.out, evaluation, verdict, reason)
    if verdict is None:
        code = INTERRUPTED if reason == "interrupted" else REFUSED
        saved = f"{evaluation.count} answers are saved in {path}"
        return _refuse(f"{reason}; {saved}", code)
    print(as_markdown(evaluation.answers, verdict, evaluation.title))
    return LOSS if verdict.failures else 0


def _write(
    folder: Path, evaluation: Evaluation, verdict: Verdict | None, reason: str
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    result = as_result(evaluation.head, evaluation.answers, verdict, reason)
    path = folder / "gsm8k.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    if verdict is not None:
        table = as_markdown(evaluation.answers, verdict, evaluation.title)
        (folder / "gsm8k.md").write_text(table)
    return path


def _refuse(line: str, code: int = REFUSED) -> int:
    print(f"benchmarks.gsm8k: {line}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
