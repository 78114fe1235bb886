"""Directory for the front of a child's PYTHONPATH; not imported as a package."""
