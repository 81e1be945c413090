"""A tiny array library: its arrays, its functions, and in `library` and `kernels` what tensorops imports."""
