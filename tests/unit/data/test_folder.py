import logging
import os
import shutil
import socket

import numpy as np
import pytest
from PIL import Image

from fedfeat.config.arguments import check_targets
from fedfeat.data import image_files, image_pixels
from fedfeat.data.folder import image_folder
from fedfeat.errors import ConfigError, DataError


def write(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(array, dtype=np.uint8)).save(path)


@pytest.fixture
def root(tmp_path):
    """Two classes of 2x3 RGB images; every pixel of an image is its number."""
    root = tmp_path / "pets"
    for number, name in enumerate(
        ["train/cat/a.png", "train/cat/b.bmp", "train/dog/c.png", "test/cat/d.png"]
    ):
        write(root / name, np.full((2, 3, 3), number))
    write(root / "test/dog/e.png", np.full((2, 3, 3), 4))
    return root


def values(examples):
    return examples.inputs[:, 0, 0, 0].tolist()


def test_images_become_one_array_in_the_order_of_classes_and_names(root):
    dataset = image_folder(root)
    assert dataset.name == "pets"
    assert dataset.classes == ("cat", "dog")
    assert dataset.input_shape == (3, 2, 3)
    assert (values(dataset.train), dataset.train.labels.tolist()) == ([0, 1, 2], [0, 0, 1])
    assert (values(dataset.test), dataset.test.labels.tolist()) == ([3, 4], [0, 1])
    assert dataset.mean == pytest.approx((1 / 255,) * 3)
    assert dataset.std == pytest.approx(((2 / 3) ** 0.5 / 255,) * 3)


def test_channels_come_first_and_keep_their_order(root):
    pixels = np.arange(18).reshape(2, 3, 3)
    write(root / "train/cat/a.png", pixels)
    assert (image_folder(root).train.inputs[0].numpy() == pixels.transpose(2, 0, 1)).all()


def test_numbered_folders_are_sorted_as_numbers(tmp_path):
    for split in ("train", "test"):
        for name in ("10", "9", "0"):
            write(tmp_path / split / name / "x.png", np.full((2, 2), int(name)))
    dataset = image_folder(tmp_path)
    assert dataset.classes == ("0", "9", "10")
    assert values(dataset.train) == [0, 9, 10]
    assert dataset.input_shape == (1, 2, 2)


def test_other_files_are_passed_over(root):
    (root / "train/cat/notes.txt").write_text("no image")
    (root / "train/cat/.hidden.png").write_text("no image")
    (root / "train/.cache").mkdir()
    assert len(image_folder(root).train) == 3


def test_size_and_channels_convert(root):
    write(root / "train/cat/a.png", np.full((7, 5), 200))
    dataset = image_folder(root, image_size=4, channels=3)
    assert dataset.input_shape == (3, 4, 4)
    assert (dataset.train.inputs[0] == 200).all()
    assert image_folder(root, image_size=4, channels=1).input_shape == (1, 4, 4)


def test_a_wrong_extension_is_read_all_the_same(root):
    os.rename(root / "train/cat/a.png", root / "train/cat/a.jpg")
    assert values(image_folder(root).train) == [0, 1, 2]


def test_second_load_decodes_nothing_and_is_equal(root, tmp_path, monkeypatch):
    first = image_folder(root, cache_dir=tmp_path / "cache")
    monkeypatch.setattr(image_pixels, "_read", lambda *_: pytest.fail("decoded again"))
    second = image_folder(root, cache_dir=tmp_path / "cache")
    assert first.fingerprint() == second.fingerprint()
    assert sorted(p.suffix for p in (tmp_path / "cache").iterdir()) == [".json", ".json", ".npy", ".npy"]


def test_cached_arrays_can_be_changed_without_changing_the_cache(root, tmp_path):
    image_folder(root, cache_dir=tmp_path / "cache")
    image_folder(root, cache_dir=tmp_path / "cache").train.inputs.fill_(9)
    assert values(image_folder(root, cache_dir=tmp_path / "cache").train) == [0, 1, 2]


def test_a_changed_image_is_seen_even_with_the_same_size_and_time(root, tmp_path):
    path = root / "train/cat/b.bmp"
    before = path.stat()
    image_folder(root, cache_dir=tmp_path / "cache")
    write(path, np.full((2, 3, 3), 77))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert values(image_folder(root, cache_dir=tmp_path / "cache").train) == [0, 77, 2]


def test_options_have_cache_entries_of_their_own(root, tmp_path):
    for size in (2, 4):
        assert image_folder(root, image_size=size, cache_dir=tmp_path / "cache").input_shape == (
            3,
            size,
            size,
        )


def test_a_flipped_byte_in_the_cache_is_noticed(root, tmp_path, caplog):
    first = image_folder(root, cache_dir=tmp_path / "cache")
    (path,) = (p for p in (tmp_path / "cache").glob("*.npy") if len(np.load(p)) == 3)
    whole = path.read_bytes()
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    os.utime(path, ns=times)
    with caplog.at_level(logging.WARNING, logger="fedfeat.data.image_pixels"):
        second = image_folder(root, cache_dir=tmp_path / "cache")
    assert "it has been altered" in caplog.text
    assert first.fingerprint() == second.fingerprint()
    assert path.read_bytes() == whole


def test_a_cache_that_was_copied_is_used(root, tmp_path, monkeypatch):
    first = image_folder(root, cache_dir=tmp_path / "cache")
    shutil.copytree(tmp_path / "cache", tmp_path / "copied")
    monkeypatch.setattr(image_pixels, "_read", lambda *_: pytest.fail("decoded again"))
    assert image_folder(root, cache_dir=tmp_path / "copied").fingerprint() == first.fingerprint()
    monkeypatch.setattr(image_pixels, "array_digest", lambda _: pytest.fail("digested again"))
    image_folder(root, cache_dir=tmp_path / "copied")


def test_so_have_channels(root, tmp_path):
    for channels in (1, 3):
        found = image_folder(root, channels=channels, cache_dir=tmp_path / "cache")
        assert found.input_shape == (channels, 2, 3)


def test_moments_are_those_of_all_training_images_where_few_are_kept(root):
    whole, part = image_folder(root), image_folder(root, num_train=2)
    assert (len(part.train), part.mean, part.std) == (2, whole.mean, whole.std)


def test_the_order_is_that_of_the_names_whatever_that_of_the_folder(root, monkeypatch):
    whole = image_files._scan
    monkeypatch.setattr(
        image_files, "_scan", lambda path: sorted(whole(path), key=lambda e: e.name, reverse=True)
    )
    assert values(image_folder(root).train) == [0, 1, 2]


def test_a_broken_cache_file_is_replaced(root, tmp_path, caplog):
    image_folder(root, cache_dir=tmp_path / "cache")
    for path in (tmp_path / "cache").glob("*.npy"):
        path.write_bytes(b"torn")
    with caplog.at_level(logging.WARNING, logger="fedfeat.data.image_pixels"):
        assert values(image_folder(root, cache_dir=tmp_path / "cache").train) == [0, 1, 2]
    assert "decoding again" in caplog.text
    caplog.clear()
    image_folder(root, cache_dir=tmp_path / "cache")
    assert not caplog.text


def test_a_full_disk_leaves_no_file_behind(root, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(image_pixels.np, "save", full)
    place = r"to keep decoded images in .*images-\w+\.npy"
    with pytest.raises(
        DataError,
        match=rf"^paths\.cache must be writable, {place}, but it is not: .* No space left on device\.$",
    ):
        image_folder(root, cache_dir=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def remove(path):
    for child in path.iterdir():
        child.unlink()


def wide(path):
    Image.fromarray(np.zeros((2, 3), dtype=np.uint16)).save(path)


def listen(path):
    """Put a socket there; a path of its own may be too long for one."""
    before = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(before)


BAD = {
    "no root": (
        lambda r: r.rename(r.with_name("gone")),
        r"pets/train must be a readable folder, but it is not",
    ),
    "no test": (
        lambda r: (r / "test").rename(r / "x"),
        r"pets/test must be a readable folder, but it is not \(No .*\); data.root names",
    ),
    "no classes": (
        lambda r: [(r / "train" / c).rename(r / c) for c in ("cat", "dog")],
        r"pets/train must hold one folder per class, but it has none\.",
    ),
    "empty class": (
        lambda r: remove(r / "train/dog"),
        r"train/dog must hold at least one image, but it has none\.",
    ),
    "other classes": (
        lambda r: (r / "test/dog").rename(r / "test/fox"),
        r"pets must have the same classes in train and test, but only one of them has 'dog'\.",
    ),
    "corrupt": (
        lambda r: (r / "train/dog/c.png").write_bytes(b"\x89PNG\r\n\x1a\n broken"),
        r"train/dog/c\.png must be an image that Pillow can read, but it is not",
    ),
    "truncated": (
        lambda r: os.truncate(r / "test/cat/d.png", 50),
        r"test/cat/d\.png must be an image that Pillow can read, but it is not",
    ),
    "no file": (
        lambda r: (r / "train/dog/z.png").symlink_to(r / "nowhere.png"),
        r"train/dog/z\.png must be a readable file, but it is not \(No such file",
    ),
    "a pipe": (
        lambda r: os.mkfifo(r / "train/dog/z.png"),
        r"train/dog/z\.png must be a file, but it is a pipe\.",
    ),
    "a link to a device": (
        lambda r: (r / "test/cat/z.jpg").symlink_to("/dev/zero"),
        r"test/cat/z\.jpg must be a file, but it is a device\.",
    ),
    "a socket": (
        lambda r: listen(r / "train/dog/z.bmp"),
        r"train/dog/z\.bmp must be a file, but it is a socket\.",
    ),
    "a folder": (
        lambda r: (r / "train/dog/z.gif").mkdir(),
        r"train/dog/z\.gif must be a file, but it is a folder\.",
    ),
    "not UTF-8": (
        lambda r: write(r / "train" / os.fsdecode(b"caf\xe9") / "a.png", np.zeros((2, 3, 3))),
        r"train/caf\\udce9' must have a name in UTF-8, but it has not\.",
    ),
    "other size": (
        lambda r: write(r / "train/dog/c.png", np.zeros((5, 3, 3))),
        r"dog/c\.png must be 3x2x3 like the first .* image, but it is 3x5x3; set data\.loader\.image_size\.",
    ),
    "other size in test": (
        lambda r: [write(r / f"test/{c}.png", np.zeros((5, 3, 3))) for c in ("cat/d", "dog/e")],
        r"test/cat/d\.png must be 3x2x3 like the first training image, but it is 3x5x3",
    ),
    "other channels": (
        lambda r: write(r / "train/dog/c.png", np.zeros((2, 3))),
        r"dog/c\.png must be 3x2x3 like the first .* image, but it is 1x2x3; set data\.loader\.channels\.",
    ),
    "other size and channels": (
        lambda r: write(r / "train/dog/c.png", np.zeros((5, 3))),
        r"but it is 1x5x3; set data\.loader\.channels and data\.loader\.image_size\.",
    ),
    "16 bits": (
        lambda r: wide(r / "train/dog/c.png"),
        r"dog/c\.png must have 8 bits a channel, but its mode is 'I;16'\.",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_folders_are_refused_in_one_sentence(case, root, tmp_path):
    spoil, message = BAD[case]
    spoil(root)
    with pytest.raises(DataError, match=message) as caught:
        image_folder(root, cache_dir=tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"image_size": 0},
            r"data\.loader\.image_size must be an integer of at least 1 or null, but it is 0\.",
        ),
        ({"channels": 2}, r"data\.loader\.channels must be one of 1, 3, but it is 2\."),
    ],
)
def test_bad_options_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        check_targets({"data": {"loader": {"_target_": "fedfeat.data.folder.image_folder", **arguments}}})


def test_a_cache_that_holds_objects_is_not_unpickled(root, tmp_path):
    cache, marker = tmp_path / "cache", tmp_path / "harm"
    expected = image_folder(root, cache_dir=cache).train.inputs

    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(marker),)

    for path in cache.glob("images-*.npy"):
        np.save(path, np.array([Harm()], dtype=object), allow_pickle=True)
    assert image_folder(root, cache_dir=cache).train.inputs.equal(expected)
    assert not marker.exists()
