"""How long which size of training trains on what."""

from __future__ import annotations

from benchmarks.trained_model.train import Stage

STAGES = {
    # Meant for one H200; not run there yet.
    "full": (
        Stage(600, 60, 150, 128, rate=3e-3, prompted=False, repeats=0.7),
        Stage(400, 60, 300, 96, rate=2e-3, repeats=0.4),
        Stage(300, 200, 1000, 48, rate=1e-3, repeats=0.3),
        Stage(300, 1000, 3800, 12, rate=6e-4),
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
