"""First pass of `topk` over rows that one program cannot hold."""
