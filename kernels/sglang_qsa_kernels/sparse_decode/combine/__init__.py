"""Last pass of `sparse_decode` over rows whose selection was split."""
