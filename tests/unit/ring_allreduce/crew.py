"""An owner of membership and its members, with rings that are played: any order, any loss, no vectors.

A ring is whole at a member when the parts of all its members have come, in one epoch; its average is the set of those
whose parts it is made of. So two averages of a round are equal if and only if the same members took part.
"""

from collections import defaultdict

from ring_allreduce.rounds import events as ev
from ring_allreduce.rounds.member import EpochMember
from ring_allreduce.rounds.membership import RoundMembership


class Player:
    """One member: its machine, and what a reducer would keep for it."""

    def __init__(self, name, rings, crew):
        self.name, self.rings, self.crew = name, rings, crew
        self.machine = EpochMember(name)
        self.members = {}
        self.contributed = set()
        self.parts = defaultdict(set)
        self.averages = {}
        self.accepts = {}
        self.offers = {}
        self.merged = {}
        self.left_out = None

    def contribute(self):
        """To every round that may be under way."""
        first = self.machine.next_round
        if first is None:
            return
        for number in range(first, min(first + self.crew.window, self.crew.rounds + 1)):
            if number not in self.contributed and number > self.machine.committed:
                self.contributed.add(number)
                self.crew.follow(self, self.machine.handle(ev.RoundContributed(number)))
                self.send_parts(number)

    def send_parts(self, number):
        for ring in self.rings:
            for peer in self.members[ring]:
                self.crew.send(self.name, peer, ("part", self.machine.epoch, ring, number))

    def take(self, message):
        kind, *rest = message
        if kind == "order":
            (order,) = rest
            if isinstance(order, ev.LeaveOut):
                self.left_out = order
            else:
                self.crew.follow(self, self.machine.handle(order))
        elif kind == "part":
            epoch, ring, number, sender = rest
            self.parts[epoch, ring, number].add(sender)
        else:
            epoch, ring, number, sender, average = rest
            if epoch == self.machine.epoch:
                self.offers[ring, number, sender] = average  # it may come before the order to accept it
                self.look_at_offers()
        self.look()
        self.contribute()

    def look(self):
        """Whether a ring has become whole."""
        if self.machine.paused:
            return
        for (epoch, ring, number), senders in list(self.parts.items()):
            mine = epoch == self.machine.epoch and number in self.contributed and number > self.machine.committed
            if mine and senders >= set(self.members[ring]) and (ring, number) not in {*self.averages, *self.accepts}:
                self.whole(ring, number, frozenset(senders))

    def look_at_offers(self):
        """Whether an average has come from who was named for it."""
        for (ring, number), holder in list(self.accepts.items()):
            if (ring, number, holder) in self.offers:
                self.whole(ring, number, self.offers.pop((ring, number, holder)))

    def whole(self, ring, number, average):
        self.accepts.pop((ring, number), None)
        self.averages[ring, number] = average
        self.crew.follow(self, self.machine.handle(ev.RingFinished(ring, number)))

    def carry_out(self, order):
        match order:
            case ev.ReformRings(_, rings):
                self.members = {ring: rings[ring] for ring in self.rings}
                self.accepts.clear()
                self.offers.clear()
            case ev.ReportHeld(epoch, holding):
                self.crew.tell(self.name, ev.MemberHeld(epoch, self.name, holding, self.crew.forms.get(self.name, "")))
            case ev.ReportFinished(ring, number, epoch):
                self.crew.tell(self.name, ev.MemberFinished(number, self.name, ring, epoch))
            case ev.RestartRound(number):
                for ring in self.rings:
                    self.averages.pop((ring, number), None)
                self.send_parts(number)
            case ev.SendAverage(ring, number, to):
                average = self.averages[ring, number]
                for peer in to:
                    self.crew.send(self.name, peer, ("average", self.machine.epoch, ring, number, average))
            case ev.AcceptAverage(ring, number, holder):
                self.accepts[ring, number] = holder
                self.look_at_offers()
            case ev.MergeRound(number):
                assert number not in self.merged
                self.merged[number] = {ring: self.averages[ring, number] for ring in self.rings}


class Crew:
    """The owner, the players, and the messages between them."""

    def __init__(self, rings, clusters, *, rounds, window, forms=None):
        self.rounds, self.window, self.forms = rounds, window, forms or {}
        self.owner = RoundMembership(rings, ahead=window, clusters=clusters)
        self.clusters = dict(clusters)
        names = dict.fromkeys(name for members in rings.values() for name in members)
        self.players = {
            name: Player(name, [ring for ring, members in rings.items() if name in members], self) for name in names
        }
        self.wires = defaultdict(list)
        self.orders = []
        self.give(self.owner.begin())

    @property
    def alive(self):
        return [player for player in self.players.values() if player.name in self.owner.members]

    @property
    def done(self):
        return self.owner.failed or all(player.machine.committed == self.rounds for player in self.alive)

    def send(self, sender, receiver, message):
        kind, epoch, ring, number, *rest = message
        self.wires[sender, receiver].append((kind, epoch, ring, number, sender, *rest))

    def tell(self, sender, event):
        self.wires[sender, "owner"].append(event)

    def give(self, orders):
        """What the owner ordered goes to whom it concerns."""
        self.orders += orders
        for order in orders:
            if isinstance(order, ev.LeaveOut):
                self.wires["owner", order.member].append(("order", order))
            elif not isinstance(order, ev.FailRun):
                for name in self.owner.members:
                    self.wires["owner", name].append(("order", order))

    def happen(self, event):
        self.give(self.owner.handle(event))

    def join(self, cluster, members):
        for name, rings in members.items():
            self.players[name] = Player(name, list(rings), self)
            self.clusters[name] = cluster
        self.happen(ev.ClusterJoined(cluster, members))

    def kill(self, name, *, noticed=True, returns=False):
        """Its process dies, with all of its cluster: what it sent and was sent is lost. `returns`: MemberLost's."""
        lost = [other for other, cluster in self.clusters.items() if cluster == self.clusters[name]]
        for wire in [wire for wire in self.wires if set(wire) & set(lost)]:
            del self.wires[wire]
        if noticed:
            self.happen(ev.MemberLost(name, "killed", returns=returns))

    def follow(self, player, orders):
        for order in orders:
            player.carry_out(order)

    def step(self, choice, *, fifo=True, keep=False):
        """One message arrives; `keep`: it will arrive once more. False when there is none."""
        wires = sorted(wire for wire, waiting in self.wires.items() if waiting)
        if not wires:
            return False
        wire = wires[choice % len(wires)]
        waiting = self.wires[wire]
        at = 0 if fifo else choice // len(wires) % len(waiting)
        message = waiting[at] if keep else waiting.pop(at)
        receiver = wire[1]
        if receiver == "owner":
            self.happen(message)
        elif receiver in self.players:
            self.players[receiver].take(message)
        return True

    def drop_part(self, choice):
        """A connection between two members loses what is on it."""
        wires = sorted(wire for wire, waiting in self.wires.items() if waiting and "owner" not in wire)
        if wires:
            self.wires[wires[choice % len(wires)]].clear()

    def run(self):
        """Everything arrives, in order; who is waited for in vain is suspected. Raises when that does not end it."""
        for _ in range(10_000):
            if self.step(0):
                continue
            if self.done:
                return
            missing = self.missing()
            assert missing, f"a hang: {self.owner.forming} {self.owner.epoch} {self.orders[-3:]}"
            self.happen(ev.MemberSuspected(self.owner.epoch, missing, "nothing came"))
        raise AssertionError("it goes on for ever")

    def missing(self):
        """Whose part is missing to somebody."""
        for player in self.alive:
            for number in sorted(player.contributed):
                for ring in player.rings:
                    if number > player.machine.committed and (ring, number) not in player.averages:
                        here = player.parts[player.machine.epoch, ring, number]
                        for name in player.members[ring]:
                            if name not in here or (ring, number) in player.accepts:
                                return player.accepts.get((ring, number), name)
        return None

    def check(self):
        """No two members merged different averages of a round, and no round the clusters of some rings only."""
        commits = [order.round for order in self.orders if isinstance(order, ev.CommitRound)]
        assert commits == list(range(1, len(commits) + 1))
        merged = defaultdict(set)
        for player in self.players.values():
            assert list(player.merged) == sorted(player.merged)
            for number, averages in player.merged.items():
                assert number in commits
                for ring, members in averages.items():
                    merged[number].add((ring, members))
        for number, averages in merged.items():
            assert len({ring for ring, _ in averages}) == len(averages), f"two averages of round {number}: {averages}"
            clusters = {frozenset(self.clusters[name] for name in members) for _, members in averages}
            assert len(clusters) == 1, f"round {number} has other clusters in other rings: {averages}"
