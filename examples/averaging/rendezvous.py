"""Where the members meet: python examples/averaging/rendezvous.py SIZE"""

import sys

from ring_allreduce import Rendezvous

if len(sys.argv) != 2 or not sys.argv[1].isdecimal():
    print(__doc__, file=sys.stderr)
    sys.exit(2)
with Rendezvous(size=int(sys.argv[1]), port=29500) as rendezvous:
    print(f"{sys.argv[1]} members are expected at {rendezvous.address}", flush=True)
    rendezvous.wait()
