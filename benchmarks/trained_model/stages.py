"""How long which size of training trains on what."""

from __future__ import annotations

from benchmarks.trained_model import tasks
from benchmarks.trained_model.train import Stage

MOST_NAMES = {"full": tasks.MOST_NAMES, "small": 8, "smoke": 8}
"""That have a value in a long text."""
STAGES = {
    # For one H200. With 300 and 240 steps in the last two stages it took 9 minutes
    # beside another training: 85 to 93 % right (results/trained_model_h200_202611).
    "full": (
        Stage(600, 60, 150, 128, rate=3e-3, prompted=False, repeats=0.7),
        Stage(400, 60, 300, 96, rate=2e-3, repeats=0.4),
        Stage(500, 200, 1600, 48, rate=1e-3, repeats=0.3),
        Stage(400, 1000, 3800, 12, rate=6e-4),
    ),
    # For one CPU core; made from stages run by hand, not run as a whole yet.
    "small": (
        Stage(400, 60, 150, 16, rate=3e-3, prompted=False, repeats=0.7),
        Stage(400, 60, 300, 10, rate=2e-3, repeats=0.4),
        Stage(200, 200, 1000, 4, rate=1e-3, repeats=0.3),
        Stage(75, 1000, 3800, 1, rate=6e-4),
    ),
    # Whether it runs.
    "smoke": (Stage(25, 60, 80, 2, rate=1e-3),),
}
