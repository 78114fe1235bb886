"""Where the packages lie. Everything else is in pyproject.toml."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(".", include=["sglang_qsa", "sglang_qsa.*"]),
        *find_packages("kernels", include=["sglang_qsa_kernels*"]),
        "sglang_qsa_patches",
    ],
    package_dir={
        "sglang_qsa_kernels": "kernels/sglang_qsa_kernels",
        "sglang_qsa_patches": "patches",
    },
)
