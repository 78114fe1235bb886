"""GPU kernels for QSA prefix caching: one package per operator."""
