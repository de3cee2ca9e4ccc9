"""How another process of the same user finds a running job and looks at it, and what is kept of finished ones."""
