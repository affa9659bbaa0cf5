"""Folders of images: what is found, how it is cut and scaled, and each way to get it wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flexlegion.base.errors import UserError
from flexlegion.data import images as module
from flexlegion.data import load_images, write_digits
from flexlegion.data.digits import load_raw_digits
from flexlegion.data.images import BYTE_VALUES, read_image

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def save(path: Path, image: Image.Image) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **({"quality": 95} if path.suffix == ".jpg" else {}))
    return path


def stripes(width: int = 40, height: int = 20) -> Image.Image:
    """Red, green and blue, the green as wide as the image is high."""
    image = Image.new("RGB", (width, height), GREEN)
    side = (width - height) // 2
    image.paste(RED, (0, 0, side, height))
    image.paste(BLUE, (width - side, 0, width, height))
    return image


def plain(root: Path, counts: dict[str, int], ending: str = ".png") -> None:
    for number, (name, count) in enumerate(counts.items()):
        for i in range(count):
            save(root / name / f"{i}{ending}", Image.new("RGB", (9, 7), (number, i, 0)))


def test_train_and_test_folders(tmp_path: Path) -> None:
    plain(tmp_path / "train", {"cat": 2, "ant": 3, "bee": 1})
    plain(tmp_path / "test", {"bee": 2}, ".JPEG")
    (tmp_path / "train" / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "train" / "empty").mkdir()
    train, test = load_images(tmp_path, (4, 4, 3))
    assert train.class_names == ("ant", "bee", "cat")
    assert train.labels.tolist() == [0, 0, 0, 1, 2, 2]
    assert [file.parent.name for file in train.files] == ["ant"] * 3 + ["bee", "cat", "cat"]
    assert test is not None
    assert (len(test), test.labels.tolist(), test.n_classes) == (2, [1, 1], 3)


def test_one_folder_is_split(tmp_path: Path) -> None:
    plain(tmp_path, {"a": 6, "b": 4})
    whole, test = load_images(tmp_path, (4, 4, 3), augment=True)
    assert test is None
    train, held = whole.split(0.3, seed=1)
    assert (len(train), len(held)) == (7, 3)
    assert sorted([*train.files, *held.files]) == sorted(whole.files)
    assert train.augment
    assert not held.augment
    for part in (train, held):
        assert [{"a": 0, "b": 1}[f.parent.name] for f in part.files] == part.labels.tolist()
    assert train.files == whole.split(0.3, seed=1)[0].files


@pytest.mark.parametrize("ending", [".png", ".jpg"])
def test_the_centre_is_cut_and_scaled(tmp_path: Path, ending: str) -> None:
    tolerance = 0.0 if ending == ".png" else 0.1
    wide = save(tmp_path / f"wide{ending}", stripes())
    pixels = read_image(wide, (10, 10, 3))
    assert (pixels.dtype, pixels.shape) == (np.uint8, (10, 10, 3))
    values = BYTE_VALUES[pixels]
    np.testing.assert_allclose(values[:, 1:-1], np.full((10, 8, 3), (-1, 1, -1)), atol=tolerance)
    # As wide as the image: all three colours.
    values = BYTE_VALUES[read_image(wide, (10, 20, 3))]
    np.testing.assert_allclose(values[5, [1, 10, 18]], 2 * np.eye(3) - 1, atol=tolerance)
    tall = save(tmp_path / f"tall{ending}", stripes().rotate(90, expand=True))
    values = BYTE_VALUES[read_image(tall, (10, 10, 3))]
    np.testing.assert_allclose(values[1:-1], np.full((8, 10, 3), (-1, 1, -1)), atol=tolerance)


def test_large_jpegs_are_read_at_a_fraction(tmp_path: Path) -> None:
    path = save(tmp_path / "large.jpg", stripes(1600, 800))
    values = BYTE_VALUES[read_image(path, (50, 100, 3))]
    np.testing.assert_allclose(values[25, [12, 50, 87]], 2 * np.eye(3) - 1, atol=0.1)


def test_other_modes_become_the_network_s(tmp_path: Path) -> None:
    for mode in ("L", "P", "RGBA", "1", "LA"):
        path = save(
            tmp_path / f"{mode}.png", Image.new("RGB", (6, 6), (255, 255, 255)).convert(mode)
        )
        for channels in (1, 3):
            assert (read_image(path, (4, 4, channels)) == 255).all()
    path = save(tmp_path / "grey.png", Image.new("L", (6, 6), 51))
    assert (read_image(path, (2, 2, 1)) == 51).all()
    assert BYTE_VALUES[[0, 51, 255]].tolist() == pytest.approx([-1, 51 / 127.5 - 1, 1])


def test_augmentation_is_a_function_of_seed_epoch_and_sample(tmp_path: Path) -> None:
    gradient = np.add.outer(np.arange(64), 3 * np.arange(64)).astype(np.uint8)
    for name in ("a/0.png", "b/0.png"):
        save(tmp_path / name, Image.fromarray(gradient))

    def read(seed: int, epoch: int, row: int) -> np.ndarray:
        folder = load_images(tmp_path, (56, 56, 1), augment=True, seed=seed).train
        image, label = np.zeros((56, 56, 1), np.uint8), np.zeros((), np.int32)
        folder.read(row, epoch, (image, label))
        assert label == row
        return image

    assert np.array_equal(read(1, 2, 0), read(1, 2, 0))
    others = [read(1, 2, 1), read(1, 3, 0), read(2, 2, 0)]
    assert not any(np.array_equal(read(1, 2, 0), other) for other in others)
    # 56 of the 64 pixels each way, all such parts, mirrored in about half of the epochs.
    found = [read(1, epoch, 0)[..., 0] for epoch in range(200)]
    mirrored = [image[0, 1] < image[0, 0] for image in found]
    assert 75 < sum(mirrored) < 125
    corners = set()
    for image, turned in zip(found, mirrored, strict=True):
        part = image[:, ::-1] if turned else image
        places = [(y, x) for y in range(9) for x in range(9) if y + 3 * x == part[0, 0]]
        corners |= {
            (y, x) for y, x in places if np.array_equal(part, gradient[y : y + 56, x : x + 56])
        }
    assert {y for y, _ in corners} == {x for _, x in corners} == set(range(9))


@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("kept", [True, False])
def test_images_are_decoded_once(
    augment: bool, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain(tmp_path, {"a": 3, "b": 2})
    decoded: list[Path] = []

    def counted(path: Path, shape: tuple[int, ...]) -> np.ndarray:
        decoded.append(path)
        return read_image(path, shape)

    monkeypatch.setattr(module, "read_image", counted)
    if not kept:
        monkeypatch.setattr(
            module, "IN_MEMORY", 5 * 7 * 8 * 3 - 1 if augment else 5 * 7 * 7 * 3 - 1
        )
    folder = load_images(tmp_path, (7, 7, 3), augment=augment).train
    pixels, label = np.zeros((7, 7, 3), np.uint8), np.zeros((), np.int32)
    for epoch in range(3):
        for row in (4, 1):
            folder.read(row, epoch, (pixels, label))
            # Of one colour, whatever part it is.
            assert (pixels == [int(label), row % 3, 0]).all()
    assert decoded == [folder.files[4], folder.files[1]] * (1 if kept else 3)
    folder.read_labels(0, 0, (pixels, label))
    assert label == 0
    assert len(decoded) == (2 if kept else 6)


def test_digits_as_files(tmp_path: Path) -> None:
    write_digits(tmp_path)
    train, test = load_images(tmp_path, (8, 8, 1))
    assert test is not None
    assert (len(train), len(test), train.n_classes) == (1437, 360, 10)
    images, labels = load_raw_digits()
    number = int(train.files[100].stem)
    assert train.labels[100] == labels[number]
    grey = read_image(train.files[100], (8, 8, 1))[..., 0] / 16
    assert np.abs(grey - images[number]).max() < 0.1


def test_refuses_what_cannot_be_read(tmp_path: Path) -> None:
    pixels, label = np.zeros((4, 4, 3), np.uint8), np.zeros((), np.int32)
    whole = save(tmp_path / "a" / "0.png", stripes()).read_bytes()
    bad = tmp_path / "a" / "1.png"
    for content in (b"", b"no image", whole[:60], whole[: len(whole) // 2]):
        bad.write_bytes(content)
        with pytest.raises(UserError, match="this cannot be read as an image") as caught:
            load_images(tmp_path, (4, 4, 3)).train.read(1, 0, (pixels, label))
        assert str(caught.value).startswith(f"{bad}: ")
        assert "\n" not in str(caught.value)


def test_refuses_folders_without_classes(tmp_path: Path) -> None:
    save(tmp_path / "image.png", stripes())
    with pytest.raises(UserError, match="there are no classes here, which are folders"):
        load_images(tmp_path, (4, 4, 3))
    plain(tmp_path / "train", {"a": 1})
    (tmp_path / "test").mkdir()
    with pytest.raises(UserError, match=f"^{tmp_path / 'test'}: there are no classes here"):
        load_images(tmp_path, (4, 4, 3))
    plain(tmp_path / "test", {"b": 1})
    with pytest.raises(UserError, match=f"^{tmp_path / 'test' / 'b'}: there is no such class in"):
        load_images(tmp_path, (4, 4, 3))


@pytest.mark.parametrize("shape", [(4, 4, 2), (4, 4), (0, 4, 3)])
def test_refuses_other_shapes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    plain(tmp_path, {"a": 1})
    with pytest.raises(UserError, match=r"of 1 or 3 channels, but the network's input has the"):
        load_images(tmp_path, shape)
