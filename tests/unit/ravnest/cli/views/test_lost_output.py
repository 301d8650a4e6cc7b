import io
import os
import select
import sys
from pathlib import Path

import pytest

from ravnest.cli.views.lost_output import lasting_console
from ravnest.cli.views.progress import LiveView, PlainView
from ravnest.driver.observe.report import NoticeEvent


@pytest.mark.parametrize("made", [PlainView, LiveView])
@pytest.mark.parametrize("opened", [os.pipe, os.openpty])
def test_a_view_that_nobody_sees_any_more_ends_nothing(opened, made, monkeypatch):
    there, here = opened()
    with os.fdopen(here, "w", buffering=1) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        console = lasting_console(stderr=True, force_terminal=made is LiveView)
        with made(console) as view:
            view.on(NoticeEvent("seen"))
            shown = b""
            readable = select.poll()  # select() refuses numbers above 1,023
            readable.register(there, select.POLLIN)
            while b"seen" not in shown and readable.poll(10_000):
                shown += os.read(there, 65536)
            assert b"seen" in shown
            os.close(there)
            for number in range(3):
                view.on(NoticeEvent(f"number {number}"))
        console.print("the result")
        stream.write("what others write to it\n")
        assert os.path.samestat(os.fstat(here), Path(os.devnull).stat())


class FullOnce(io.StringIO):
    """A stream to a file on a disk that has no room for the first text."""

    full = True

    def write(self, text):
        if self.full:
            self.full = False
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_an_output_that_is_only_full_is_tried_again(monkeypatch):
    monkeypatch.setattr(sys, "stdout", FullOnce())
    console = lasting_console(stderr=False)
    console.print("lost")
    console.print("kept")
    assert console.file.getvalue() == "kept\n"
