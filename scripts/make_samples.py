"""Make the sample texts in flexlegion/data/samples/ from the sources that they come from.

They are Django's source distribution, and the wheels of Wagtail and Sphinx, each unpacked:

    pip download --no-deps --no-binary :all: Django==5.2
    pip download --no-deps wagtail==8.0.1 sphinx==9.0.4
    pip install polib
    python scripts/make_samples.py Django-5.2 wagtail sphinx
"""

from __future__ import annotations

import argparse
import lzma
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import polib

from flexlegion.data.text import tokenise

SAMPLES = Path(__file__).parents[1] / "flexlegion" / "data" / "samples"
HELD_OUT = 0.1
SEED = 0

# Chapters of Django's manual, for text classification: the folders and files under docs/.
CHAPTERS = {
    "auth": ("topics/auth", "ref/contrib/auth.txt"),
    "database": ("topics/db", "ref/models"),
    "forms": ("topics/forms", "ref/forms"),
    "geography": ("ref/contrib/gis",),
    "http": ("topics/http", "ref/request-response.txt", "ref/middleware.txt", "ref/urls.txt"),
    "templates": ("topics/templates.txt", "ref/templates", "howto/custom-template-tags.txt"),
    "testing": ("topics/testing", "internals/contributing/writing-code/unit-tests.txt"),
    "translation": ("topics/i18n",),
}
MANUAL = ("intro", "topics", "howto", "faq")  # for the language model

# What marks up reStructuredText, and what stays of it.
_MARKUP = (
    (re.compile(r":[\w:-]+:`[~!]?([^`<]+?)\s*<[^`]*>`"), r"\1"),  # :role:`text <target>`
    (re.compile(r":[\w:-]+:`~(?:[^`]*\.)?([^`.]+)`"), r"\1"),  # :role:`~module.name`
    (re.compile(r":[\w:-]+:`([^`]*)`"), r"\1"),
    (re.compile(r"`([^`<]+?)\s*<[^`]*>`__?"), r"\1"),  # `text <address>`_
    (re.compile(r"`+([^`]*)`+_{0,2}"), r"\1"),
    (re.compile(r"\*{1,2}([^*\s][^*]*)\*{1,2}"), r"\1"),
    (re.compile(r"::$"), ":"),
)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_PLACEHOLDER = re.compile(r"%\(\w+\)[sdi]|%[sd]|\{\w*\}")
_MARKED_UP = re.compile(r"[<&%{\\]|https?:")


def paragraphs(text: str) -> Iterator[str]:
    """The running text of a reStructuredText file, without its markup."""
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        plain = lines and lines[0][:1].isalpha() and not any(x[:1] in " =-~^#+|" for x in lines)
        if not plain:
            continue
        paragraph = " ".join(lines)
        for pattern, replacement in _MARKUP:
            paragraph = pattern.sub(replacement, paragraph)
        if paragraph[-1:] in ".!?:" and len(paragraph.split()) > 5:
            yield paragraph


def sentences(text: str) -> Iterator[str]:
    """Sentences of a reStructuredText file."""
    for paragraph in paragraphs(text):
        yield from _SENTENCE_END.split(paragraph)


def files(docs: Path, names: Iterable[str]) -> Iterator[Path]:
    """The named files, and those below the named folders."""
    for name in names:
        path = docs / name
        yield from sorted(path.rglob("*.txt")) if path.is_dir() else [path]


def write(name: str, lines: Iterable[str]) -> None:
    """Write a compressed text file among the samples."""
    path = SAMPLES / f"{name}.xz"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    print(f"{path.relative_to(SAMPLES.parent)}: {path.stat().st_size:,} bytes")


def divided(items: Sequence[str]) -> tuple[list[str], list[str]]:
    """Items to train on, and held-out ones, at random."""
    order = np.random.default_rng(SEED).permutation(len(items))
    held = round(len(items) * HELD_OUT)
    return [items[i] for i in order[held:]], [items[i] for i in order[:held]]


def language_model(docs: Path) -> None:
    """Whole paragraphs of the manual as the Penn Treebank's files have text, in lower case."""
    lines = [
        " ".join(tokenise(sentence))
        for path in files(docs, MANUAL)
        for sentence in sentences(path.read_text())
    ]
    # Parts in a row: sentences next to each other belong together.
    held = round(len(lines) * HELD_OUT / 2)
    write("manual/manual.train.txt", lines[: -2 * held])
    write("manual/manual.valid.txt", lines[-2 * held : -held])
    write("manual/manual.test.txt", lines[-held:])


def classification(docs: Path) -> None:
    """Sentences with the chapters that they come from, the same number of each chapter."""
    found = {
        chapter: sorted({s for path in files(docs, names) for s in sentences(path.read_text())})
        for chapter, names in CHAPTERS.items()
    }
    found = {
        chapter: [s for s in texts if 6 <= len(tokenise(s)) <= 40 and "\t" not in s]
        for chapter, texts in found.items()
    }
    number = min(len(texts) for texts in found.values())
    rng = np.random.default_rng(SEED)
    lines = [
        f"{chapter}\t{texts[i]}"
        for chapter, texts in found.items()
        for i in rng.permutation(len(texts))[:number]
    ]
    print(f"{number} sentences of each of {len(found)} chapters")
    train, test = divided(lines)
    write("chapters/train.tsv", train)
    write("chapters/test.tsv", test)


def translation(roots: Sequence[Path]) -> None:
    """English texts of user interfaces with their German translations."""
    pairs: dict[str, str] = {}
    for root in roots:
        for path in sorted(root.rglob("locale/de/LC_MESSAGES/*.po")):
            for entry in polib.pofile(str(path)).translated_entries():
                source, target = (
                    " ".join(_PLACEHOLDER.sub("X", text).split())
                    for text in (entry.msgid, entry.msgstr)
                )
                if source and target and not _MARKED_UP.search(source + target):
                    pairs.setdefault(source, target)
    print(f"{len(pairs)} pairs")
    for part, sources in zip(("train", "test"), divided(sorted(pairs)), strict=True):
        write(f"interface/{part}.en", sources)
        write(f"interface/{part}.de", [pairs[source] for source in sources])


def main() -> None:
    """Read the folders of the sources, write the samples."""
    parser = argparse.ArgumentParser(description="Make the sample texts.")
    parser.add_argument("django", type=Path, help="Django's source distribution, unpacked")
    parser.add_argument("others", type=Path, nargs="+", help="other packages, unpacked")
    args = parser.parse_args()
    language_model(args.django / "docs")
    classification(args.django / "docs")
    translation([args.django, *args.others])


if __name__ == "__main__":
    main()
