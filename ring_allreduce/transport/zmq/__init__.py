"""The real transport: ZeroMQ sockets, one ROUTER for each lane and one DEALER for each peer and lane, over TCP.

In: messages for named peers. Out: deliveries from admitted peers, in each lane's order.
"""
