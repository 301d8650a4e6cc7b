"""Threads that take turns as a seed says, over what several of them touch."""
