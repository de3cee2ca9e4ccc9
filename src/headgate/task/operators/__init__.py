"""The operators of STREAMING mode, without windows: each calls the user's function for a batch of values."""
