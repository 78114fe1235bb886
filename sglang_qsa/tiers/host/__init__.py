"""Host memory: page records and checkpoint records behind HiCache's host pools."""
