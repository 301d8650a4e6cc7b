"""Keys, allow-lists, and the handshake that admits a connection.

In: key files and the public key of who connects. Out: the member's name, or a refusal.
"""
