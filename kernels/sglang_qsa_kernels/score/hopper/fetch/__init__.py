"""The warp of `score.hopper` that asks for pages, and how programs share the tiles."""
