"""MXFP4 rows: E2M1 pairs with an E8M0 exponent per 32 values."""
