"""Turn the formulas of a page into MathML while the site is built, so that no browser needs a script for them.

In: the page's HTML, in which pymdownx.arithmatex has marked each formula. Out: the same HTML with `<math>` elements.
A formula that cannot be converted ends the build.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\([(\[])(.*?)\\[)\]]\s*</\1>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """Replace each marked formula. MkDocs calls this once for every page."""
    return FORMULA.sub(_element, content)


def _element(found: re.Match[str]) -> str:
    display = "block" if found[2] == "[" else "inline"
    return convert(html.unescape(found[3]).strip(), display=display)
