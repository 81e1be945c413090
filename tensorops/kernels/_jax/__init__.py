"""What the providers for JAX arrays share: one primitive, its derivatives and its batching."""
