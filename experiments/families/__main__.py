"""`python -m experiments.families [--quick] [--only PART…] [--json]`: try each family, and write RESULT.md."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from experiments.families import families, judged, quality
from experiments.families.trial import Family
from experiments.harness.command import parser_for, run_parts
from experiments.harness.report import Part

TITLE = "Families of models and kinds of data"
INTRO = (
    "Whether what is trained is what its user meant: each family is planned for two clusters, trained by the real "
    "stages in one process, reloaded strictly, and compared with plain PyTorch; or it is refused, and says why. "
    "docs/experiments/families.md says what each part does."
)

TABLES: Mapping[str, tuple[str, Sequence[Family]]] = {
    "vectors": ("Models over vectors and graphs", families.DENSE),
    "images": ("Convolutional models", families.CONVOLUTIONAL),
    "sequences": ("Models over sequences", families.SEQUENTIAL),
    "hugging_face": ("Models of transformers", families.HUGGING_FACE),
    "refusals": ("Models that have to be refused", families.REFUSED),
    "data": ("Kinds of data", families.DATA),
}


def main(arguments: list[str] | None = None) -> int:
    """The exit code: see run_parts."""
    asked = parser_for("families", __doc__, [*TABLES, "quality"]).parse_args(arguments)
    parts: dict[str, Callable[[], Part]] = {
        name: partial(judged.run, name, title, table, families.QUICK, is_quick=asked.quick)
        for name, (title, table) in TABLES.items()
    }
    parts["quality"] = partial(quality.run, quick=asked.quick)
    return run_parts("families", asked, parts, title=TITLE, intro=INTRO)


if __name__ == "__main__":
    sys.exit(main())
