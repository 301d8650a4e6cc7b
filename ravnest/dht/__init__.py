"""A hash table over peers that need not trust each other (Kademlia): who finds a key's records, and who keeps them.

In: the addresses of some peers, keys, and values to store. Out: the records of a key, each signed by its author. It
knows no torch, no plan and no run.
"""

from ravnest.dht.events import Entry, EntryStored, KeyFound
from ravnest.dht.hash_table import HashTable
from ravnest.dht.identity import KeyIdentity, new_identity, read_identity
from ravnest.dht.node import Health
from ravnest.dht.records import Record, Rule, Rules
from ravnest.dht.store import Stored, StoreLimits
from ravnest.dht.survey import Survey

__all__ = [
    "Entry",
    "EntryStored",
    "HashTable",
    "Health",
    "KeyFound",
    "KeyIdentity",
    "Record",
    "Rule",
    "Rules",
    "StoreLimits",
    "Stored",
    "Survey",
    "new_identity",
    "read_identity",
]
