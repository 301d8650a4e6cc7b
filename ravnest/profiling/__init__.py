"""What machines can do and whether they fit a plan: `ravnest profile` and `ravnest doctor`."""
