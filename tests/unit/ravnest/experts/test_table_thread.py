import threading

import pytest

from ravnest.dht import new_identity
from ravnest.errors import InvalidInput
from ravnest.experts.table_thread import TableThread


def test_a_node_that_cannot_be_opened_leaves_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(InvalidInput, match="expected host:port"):
        TableThread(["nowhere"], [], new_identity())
    assert threading.active_count() == before
