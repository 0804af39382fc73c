"""Images in files: every format gives the same pixels, and what is wrong is said."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from elman.errors import FileError, InputError
from elman.tasks.image.data import EMBEDDED, Images, check_fixed, fingerprint, is_binary, levels_of, read_images

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    """The IDX format, from its description."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}i", *array.shape) + array.tobytes()


def write(path: Path, array: np.ndarray = PIXELS, **others: np.ndarray) -> str:
    np.savez(path, x=array, **others)
    return str(path)


def test_every_format_gives_the_same_pixels(tmp_path):
    from scipy.io import savemat

    (tmp_path / "plain.idx3").write_bytes(idx(PIXELS))
    (tmp_path / "packed").write_bytes(gzip.compress(idx(PIXELS)))
    savemat(tmp_path / "matlab.mat", {"X": PIXELS.reshape(5, 12)})
    (tmp_path / "matlab.mat").rename(tmp_path / "matlab.amat")  # told by its content, not its ending
    names = [write(tmp_path / "numpy.npz", y=np.arange(5)), *(str(tmp_path / n) for n in ("plain.idx3", "packed"))]
    for name in [*names, f"{tmp_path / 'matlab.amat'}"]:
        found = read_images([name], columns=3)
        np.testing.assert_array_equal(found.values, PIXELS)
        assert found.white == 255
    assert len(read_images(names)) == 15


def test_a_key_names_one_of_several_arrays(tmp_path):
    name = write(tmp_path / "two.npz", a=PIXELS[:2])
    assert len(read_images([f"{name}:a"])) == 2
    with pytest.raises(InputError, match=r"has the arrays x, a .* as .*two.npz:KEY"):
        read_images([name])
    with pytest.raises(InputError, match="has the arrays x, a"):
        read_images([f"{name}:b"])


def test_the_embedded_digits():
    found = read_images([EMBEDDED])
    assert found.values.shape == (1797, 8, 8) and found.white == 16 and found.values.max() == 16
    with pytest.raises(InputError, match="embedded:digits"):
        read_images(["embedded:faces"])


def test_flat_images_are_square_unless_one_says_otherwise(tmp_path):
    name = write(tmp_path / "flat.npz", np.zeros((2, 16)))
    assert read_images([name]).values.shape == (2, 4, 4)
    assert read_images([name], columns=8).values.shape == (2, 2, 8)
    with pytest.raises(InputError, match="do not make rows of 5"):
        read_images([name], columns=5)
    with pytest.raises(InputError, match=r"do not make a square: set data\.columns"):
        read_images([write(tmp_path / "odd.npz", np.zeros((2, 12)))])


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.full((2, 3, 3), np.nan), "image 0 of .* has the value nan in row 0, column 0"),
        (np.full((2, 3, 3), -1.0), "has the value -1 in row 0, column 0; black is 0"),
        (np.full((2, 3, 3), 7.0), "has the value 7 in row 0, column 0; the largest is 1"),
        (np.zeros((0, 3, 3)), "holds no image"),
        (np.zeros((2, 3, 0)), r"it must be \(N, R, C\)"),
        (np.zeros((2, 3, 3, 3)), r"it must be \(N, R, C\)"),
        (np.zeros((2, 3, 3), dtype="U1"), "images are numbers"),
        (np.zeros(3), r"has the arrays \(none\) with more than one axis"),
    ],
)
def test_what_is_not_images_is_said(tmp_path, array, message):
    with pytest.raises(InputError, match=message):
        read_images([write(tmp_path / "bad.npz", array)])


def test_files_that_cannot_be_read_are_said(tmp_path):
    for name, content, message in [
        ("empty", b"", "is empty"),
        ("text", b"hello world", "is not an .npz, IDX or MATLAB file: it begins with b'hello worl'"),
        ("cut", idx(PIXELS)[:-5], "may be truncated"),
        ("zip", b"PK\x03\x04 and no more", "cannot read"),
        ("mat", b"MATLAB 5.0 and no more", "cannot read"),
        ("gz", b"\x1f\x8b and no more", "cannot read"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FileError, match=message):
            read_images([str(tmp_path / name)])


def test_files_of_different_sizes_are_refused(tmp_path):
    names = [write(tmp_path / "a.npz"), write(tmp_path / "b.npz", PIXELS[:, :2])]
    with pytest.raises(InputError, match="hold images of 2 x 3, 4 x 3 pixels"):
        read_images(names)


def test_what_levels_and_bits_must_be():
    half = Images(np.array([[[0.0, 0.5]]]), 1.0)
    with pytest.raises(
        InputError, match=r"image 0 of f has the value 0.5 in row 0, column 1; levels are whole numbers"
    ):
        levels_of(half, "f")
    with pytest.raises(InputError, match=r"with data\.binarise fixed every value is 0 or 1"):
        check_fixed(half, "f")
    bits = Images(np.array([[[0, 1]]]), 1.0)
    check_fixed(bits, "f")
    assert is_binary(bits) and not is_binary(half)
    assert fingerprint(bits) != fingerprint(half) and fingerprint(bits) == fingerprint(Images(bits.values + 0.0, 1.0))
