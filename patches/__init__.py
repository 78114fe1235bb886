"""The record of every change made to upstream; installed as `sglang_qsa_patches`."""
