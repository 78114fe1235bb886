"""How long which size of training trains on what."""

from __future__ import annotations

from benchmarks.trained_model.train import Stage

STAGES = {
    # One H200, some minutes.
    "full": (
        Stage(
            steps=1500,
            shortest=60,
            longest=250,
            sequences=128,
            rate=2e-3,
            prompted=False,
        ),
        Stage(steps=600, shortest=200, longest=1000, sequences=48, rate=1e-3),
        Stage(steps=400, shortest=1000, longest=4000, sequences=12, rate=5e-4),
    ),
    # Two CPU cores, about an hour.
    "small": (
        Stage(
            steps=900, shortest=60, longest=150, sequences=16, rate=3e-3, prompted=False
        ),
        Stage(steps=200, shortest=200, longest=800, sequences=4, rate=1e-3),
        Stage(steps=60, shortest=2000, longest=4000, sequences=1, rate=5e-4),
    ),
    # Whether it runs.
    "smoke": (Stage(steps=25, shortest=60, longest=80, sequences=2, rate=1e-3),),
}
