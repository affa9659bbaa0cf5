"""Tokens, vocabularies, and the three kinds of texts."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexlegion.base.errors import UserError
from flexlegion.data.classification import load_classification
from flexlegion.data.dataset import IGNORED
from flexlegion.data.language_model import load_language_model
from flexlegion.data.masked import CLASS, MASK, SEPARATOR, load_masked
from flexlegion.data.parallel import load_parallel
from flexlegion.data.text import PAD, UNKNOWN, Vocabulary, detokenise, read_lines, tokenise

# Tokens and vocabularies


def test_tokens() -> None:
    assert " ".join(tokenise("It's 3.5 °C, isn't_it?")) == "it ' s 3 . 5 ° c , isn ' t_it ?"
    assert tokenise("Größe (Maß)", lower=False) == ["Größe", "(", "Maß", ")"]
    assert tokenise(" \n\t") == []
    assert detokenise(tokenise("Öffnen (oder nicht), bitte!", lower=False)) == (
        "Öffnen (oder nicht), bitte!"
    )


@given(st.text())
def test_tokens_lose_nothing_but_blanks(text: str) -> None:
    tokens = tokenise(text, lower=False)
    assert "".join(tokens) == "".join(text.split())
    assert tokenise(" ".join(tokens), lower=False) == tokens


def test_vocabulary_has_the_most_frequent_words() -> None:
    texts = [["b", "a", "c", "a"], ["b", "d", UNKNOWN, UNKNOWN, UNKNOWN]]
    words = Vocabulary.of(texts, 5, (PAD, UNKNOWN))
    assert words.words == [PAD, UNKNOWN, "a", "b", "c"]  # of a and b, and c and d, alphabetically
    assert words.encode(["d", "b", "?", PAD]).tolist() == [1, 3, 1, 0]
    assert words.decode([3, 0, 2]) == ["b", "a"]
    assert len(Vocabulary.of(texts, 100, (PAD, UNKNOWN))) == 6
    with pytest.raises(UserError, match="a vocabulary of 2 has no room for words beside <pad> <u"):
        Vocabulary.of(texts, 2, (PAD, UNKNOWN))


def test_lines(tmp_path: Path) -> None:
    text = "eins\r\nzwei\u2028drei\n\nvier"
    for name, content in (
        ("a.txt", text.encode()),
        ("a.txt.gz", gzip.compress(text.encode())),
        ("a.txt.xz", lzma.compress(text.encode())),
    ):
        (tmp_path / name).write_bytes(content)
        assert read_lines(tmp_path / name) == ["eins", "zwei\u2028drei", "", "vier"]


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.txt", "Größe".encode("latin-1"), "no UTF-8 text, because of the byte at position 2"),
        ("a.txt.gz", b"\x1f\x8b no", r"cannot be read as a text \(Compressed file ended"),
        (
            "a.txt.xz",
            lzma.compress(b"text" * 99)[:50],
            r"cannot be read as a text \(Compressed file ended",
        ),
        ("a.txt", None, r"cannot be read as a text \(No such file or directory\)"),
    ],
    ids=["latin-1", "no gzip", "cut short", "missing"],
)
def test_refuses_what_is_no_text(
    tmp_path: Path, name: str, content: bytes | None, text: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=f"^{path}: this .*{text}"):
        read_lines(path)


# Classification

TABLE = "sport\tA goal, a goal!\nnews\tThe vote\nsport\tgoal\n"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def check_table(x: np.ndarray, y: np.ndarray, words: Sequence[str]) -> None:
    """The samples of TABLE, at four steps: padding is in front, longer texts lose their end."""
    assert words == (PAD, UNKNOWN, "goal", "a", "!", ",", "the", "vote")
    assert (x.dtype, y.dtype) == (np.int32, np.int32)
    assert [[words[i] for i in row] for row in x.tolist()] == [
        ["a", "goal", ",", "a"],
        [PAD, PAD, "the", "vote"],
        [PAD, PAD, PAD, "goal"],
    ]
    assert y.tolist() == [1, 0, 1]


@pytest.mark.parametrize("form", ["tsv", "csv", "csv with header", "folder", "xz"])
def test_labelled_texts(tmp_path: Path, form: str) -> None:
    rows = [line.split("\t") for line in TABLE.splitlines()]
    source = tmp_path / "texts.tsv"
    if form == "tsv":
        write(source, TABLE)
    elif form.startswith("csv"):
        source = tmp_path / "texts.csv"
        header = "label,text\n" if "header" in form else ""
        write(source, header + "".join(f'{label},"{text}"\n' for label, text in rows))
    elif form == "folder":
        source = tmp_path
        write(source / "train.tsv", TABLE)
    else:
        source = tmp_path / "texts.tsv.xz"
        source.write_bytes(lzma.compress(TABLE.encode()))
    train, test = load_classification(source, 4, 100)
    assert test is None
    check_table(train.inputs[0], train.y, tuple(train.vocabularies[0].words))
    assert (train.n_classes, train.vocabulary) == (2, 8)


def test_folders_of_texts(tmp_path: Path) -> None:
    write(tmp_path / "news" / "1.txt", "The vote\n")
    for number, text in enumerate(("A goal,\na goal!", "goal")):
        write(tmp_path / "sport" / f"{number}.txt", text)
    train, test = load_classification(tmp_path, 4, 100)
    assert test is None
    assert train.y.tolist() == [0, 1, 1]
    assert (
        train.inputs[0][1].tolist()
        == train.vocabularies[0].encode(["a", "goal", ",", "a"]).tolist()
    )


def test_texts_to_test_with(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", TABLE)
    write(tmp_path / "test.tsv", "sport\tThe match\n")
    train, test = load_classification(tmp_path, 3, 100)
    assert test is not None
    # Words that training did not see are unknown.
    assert test.inputs[0].tolist() == [[0, train.vocabularies[0].number("the"), 1]]
    assert (test.y.tolist(), test.n_classes) == ([1], 2)
    write(tmp_path / "test.tsv", "music\tThe song\n")
    with pytest.raises(UserError, match="the class music of a text to test with has no texts to"):
        load_classification(tmp_path, 3, 100)


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("t.tsv", "a\tb\nno tab\n", "t.tsv: text 2 is not a label and a text with a tab between"),
        ("t.csv", "a,b\nc,d,e\n", "t.csv: text 2 is not a label and a text with a comma between"),
        ("t.tsv", "\ttext\n", "text 1 is not a label and a text"),
        ("t.tsv", "", "t.tsv: there are no texts in this file"),
    ],
)
def test_refuses_other_tables(tmp_path: Path, name: str, content: str, text: str) -> None:
    with pytest.raises(UserError, match=text):
        load_classification(write(tmp_path / name, content), 4, 100)


def test_refuses_a_folder_without_texts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^{tmp_path}: there is neither train.tsv nor train.csv"):
        load_classification(tmp_path, 4, 100)


# Language models


def test_penn_treebank_format(tmp_path: Path) -> None:
    write(tmp_path / "ptb.train.txt", " the N <unk> sat . \n the N ran \n")
    write(tmp_path / "ptb.test.txt", " the dog sat \n")
    write(tmp_path / "ptb.valid.txt", " unused \n")
    train, test = load_language_model(tmp_path, 3, 100)
    words = train.vocabularies[0]
    assert words.words == ["<unk>", "<eos>", "N", "the", ".", "ran", "sat"]
    text = words.encode(["the", "N", "<unk>", "sat", ".", "<eos>", "the", "N", "ran", "<eos>"])
    # Nine tokens in sequences of three; the tenth is only a label.
    assert train.inputs[0].reshape(-1).tolist() == text[:9].tolist()
    assert train.y.reshape(-1).tolist() == text[1:].tolist()
    assert train.y.shape == train.inputs[0].shape == (3, 3)
    assert (train.n_classes, train.vocabulary) == (7, 7)
    assert test is not None
    assert test.inputs[0].tolist() == [[3, 0, 6]]  # the dog is unknown
    assert test.y.tolist() == [[0, 6, 1]]


def test_any_text(tmp_path: Path) -> None:
    path = write(tmp_path / "book.txt", "One fish, two Fish.\nRed")
    train, test = load_language_model(path, 2, 4)
    assert test is None
    assert train.vocabularies[0].words == ["<unk>", "<eos>", "fish", ","]
    assert train.inputs[0].tolist() == [[0, 2], [3, 0], [2, 0], [1, 0]]


def test_refuses_too_little_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one two three\n")
    with pytest.raises(
        UserError, match=r"a.txt: this text has 4 tokens, and a sequence of 4 steps"
    ):
        load_language_model(path, 4, 10)
    with pytest.raises(UserError, match=f"^{tmp_path}: there is no NAME.train.txt in this folder"):
        load_language_model(tmp_path, 4, 10)


# Parallel corpora


def test_masked_words(tmp_path: Path) -> None:
    text = " ".join(f"w{i % 50}" for i in range(4000))
    path = write(tmp_path / "a.txt", text)
    train, test = load_masked(path, 12, 40, seed=3)
    assert test is None
    tokens, segments = train.inputs
    assert tokens.shape == segments.shape == train.y.shape == (4001 // 9, 12)
    words = train.vocabularies[0]
    marks = [words.number(mark) for mark in (CLASS, SEPARATOR, SEPARATOR)]
    assert (tokens[:, [0, 5, 11]] == marks).all()
    assert (segments == [0] * 6 + [1] * 6).all()
    chosen = train.y != IGNORED
    assert not chosen[:, [0, 5, 11]].any()
    assert chosen.mean() == pytest.approx(0.15 * 9 / 12, abs=0.02)
    masked = tokens == words.number(MASK)
    assert masked[chosen].mean() == pytest.approx(0.8, abs=0.06)
    assert not masked[~chosen].any()
    # Where nothing is masked, the text; what is chosen, the labels have.
    original = np.where(chosen, train.y, tokens)[:, [1, 2, 3, 4, 6, 7, 8, 9, 10]].reshape(-1)
    np.testing.assert_array_equal(original, words.encode(text.split())[: len(original)])
    again, _ = load_masked(path, 12, 40, seed=3)
    np.testing.assert_array_equal(again.inputs[0], tokens)
    with pytest.raises(UserError, match="the size steps has to be at least 5, but is 4"):
        load_masked(path, 4, 40, seed=3)
    with pytest.raises(UserError, match=r"has 2 tokens, and a sample of 12 steps needs 9"):
        load_masked(write(tmp_path / "b.txt", "one"), 12, 40, seed=3)


def corpus(folder: Path, name: str, source: str, target: str) -> str:
    write(folder / f"{name}.en", source)
    write(folder / f"{name}.de", target)
    return str(folder / name)


def test_parallel_corpus(tmp_path: Path) -> None:
    base = corpus(
        tmp_path,
        "train",
        "a house\n\nfar too many words here\na dog\n",
        "ein Haus\n\nviel zu viele\nein großer Hund\n",
    )
    corpus(tmp_path, "test", "a cat\n", "eine Katze\n")
    train, test = load_parallel(base, ("en", "de"), 4, 100)
    source, shifted = train.inputs
    english, german = train.vocabularies
    assert english.words == ["<pad>", "<unk>", "<s>", "</s>", "a", "dog", "house"]
    # The second pair is empty, the third one's source is too long.
    assert source.tolist() == [[4, 6, 0, 0], [4, 5, 0, 0]]
    assert [[german.words[i] for i in row] for row in shifted] == [
        ["<s>", "ein", "Haus", "<pad>"],
        ["<s>", "ein", "großer", "Hund"],
    ]
    ein, haus, end = german.encode(["ein", "Haus", "</s>"])
    assert train.y[0].tolist() == [ein, haus, end, IGNORED]
    assert german.decode(train.y[1]) == ["ein", "großer", "Hund"]
    assert train.texts == ("ein Haus", "ein großer Hund")
    assert (train.vocabulary, train.n_classes) == (8, 8)
    assert test is not None
    assert test.inputs[0].tolist() == [[4, 1, 0, 0]]
    rest, held = train.split(0.5, seed=0)
    assert {*rest.texts, *held.texts} == {*train.texts}
    assert german.decode(held.y[0][held.y[0] >= 0]) == held.texts[0].split()


def test_refuses_other_corpora(tmp_path: Path) -> None:
    base = corpus(tmp_path, "c", "one\ntwo\n", "eins\n")
    with pytest.raises(
        UserError, match=r"c.en has 2 lines and .*c.de 1, but each has to be the ot"
    ):
        load_parallel(base, ("en", "de"), 4, 100)
    with pytest.raises(UserError, match=r"c.fr: there is no such file, and the sentences"):
        load_parallel(base, ("en", "fr"), 4, 100)
    base = corpus(tmp_path, "c", "one two three\n", "eins zwei drei\n")
    with pytest.raises(UserError, match="c: none of the 1 pairs of sentences has between 1 and 2"):
        load_parallel(base, ("en", "de"), 2, 100)
