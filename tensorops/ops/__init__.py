"""The operators, one module a family; `tensorops` re-exports them all."""
