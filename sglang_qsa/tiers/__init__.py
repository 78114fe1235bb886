"""The places records live beyond device memory, one package per tier."""
