"""Apart from data.py, so that what its modules import has to reach the nodes, too."""

TRAIN, HELD_OUT = 4000, 200
