"""Turn the formulas of a page into MathML while the site is built, so that no browser needs a script for them.

In: the page's HTML, in which pymdownx.arithmatex has marked each formula. Out: the same HTML with `<math>` elements.
A formula that cannot be converted, or that was not recognised, ends the build.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.pages import Page

FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\([(\[])(.*?)\\[)\]]\s*</\1>', re.DOTALL)
CODE = re.compile(r"<(code|pre)\b.*?</\1>", re.DOTALL)
LEFT = re.compile(r"\$[^$\n]{0,20}\\[A-Za-z]+")


def on_page_content(content: str, page: Page, **_: Any) -> str:
    """Replace each marked formula. MkDocs calls this once for every page."""
    converted = FORMULA.sub(_element, content)
    if left := LEFT.search(CODE.sub("", converted)):
        raise PluginError(f"{page.file.src_path}: a formula is not marked as one (spaces inside its $?): {left[0]}")
    return converted


def _element(found: re.Match[str]) -> str:
    display = "block" if found[2] == "[" else "inline"
    return convert(html.unescape(found[3]).strip(), display=display)
