"""Facts of images from a table of the user's: their order, their types, and tables that are none."""

import numpy as np
import pytest
from PIL import Image

from fedfeat.data.folder import image_folder
from fedfeat.data.partition.schemes import Natural
from fedfeat.errors import DataError

TRAIN = {"train/cat/a.png": "North", "train/cat/b.png": "South", "train/dog/a.png": "North"}
TEST = {"test/cat/a.png": "South", "test/dog/a.png": "North"}


@pytest.fixture
def root(tmp_path):
    """Two classes of 2x2 images."""
    for number, name in enumerate([*TRAIN, *TEST]):
        path = tmp_path / "pets" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((2, 2, 3), number, dtype=np.uint8)).save(path)
    return tmp_path / "pets"


def table(root, rows, header="file,hospital", **how):
    path = root / "hospitals.csv"
    path.write_text("\n".join([header, *rows]) + "\n", **how)
    return path


def lines(facts):
    return [f"{file},{value}" for file, value in facts.items()]


def test_values_are_in_the_order_of_the_images_whatever_that_of_the_rows(root):
    path = table(root, [*reversed(lines(TRAIN | TEST)), "", " , "])
    dataset = image_folder(root, columns=path)
    assert dataset.train.columns["hospital"].tolist() == ["North", "South", "North"]
    assert dataset.test.columns["hospital"].tolist() == ["South", "North"]
    assert dataset.train.inputs[:, 0, 0, 0].tolist() == [0, 1, 2]


def test_a_part_of_the_images_keeps_their_values(root):
    dataset = image_folder(root, columns=table(root, lines(TRAIN)), num_train=2)
    found = dataset.train.inputs[:, 0, 0, 0].tolist()
    assert len(found) == 2
    assert [list(TRAIN.values())[number] for number in found] == dataset.train.columns["hospital"].tolist()


def test_test_images_may_have_no_rows_at_all(root):
    dataset = image_folder(root, columns=table(root, lines(TRAIN)))
    assert (len(dataset.train.columns), dataset.test.columns) == (1, {})


def test_whole_numbers_sort_as_numbers_and_nothing_else_does(root):
    numbers = {file: str(value) for file, value in zip(TRAIN, (10, 9, 10), strict=True)}
    padded = {file: value for file, value in zip(TRAIN, ("010", "9", "10"), strict=True)}
    rows = [f"{file},{numbers[file]},{padded[file]}" for file in TRAIN]
    columns = image_folder(root, columns=table(root, rows, "file,ward,code")).train.columns
    assert columns["ward"].dtype == np.int64
    assert columns["ward"].tolist() == [10, 9, 10]
    assert columns["code"].tolist() == ["010", "9", "10"]


def test_a_table_of_a_spreadsheet_is_read(root):
    path = table(root, lines(TRAIN), encoding="utf-8-sig", newline="\r\n")
    assert image_folder(root, columns=path).train.columns["hospital"].tolist() == [*TRAIN.values()]


def test_clients_are_the_hospitals_and_are_tested_on_their_own_images(root):
    dataset = image_folder(root, columns=table(root, lines(TRAIN | TEST)))
    columns = dataset.train.columns, dataset.test.columns
    labels = dataset.train.labels.numpy(), dataset.test.labels.numpy()
    split = Natural(column="hospital").split(*labels, 2, 2, 0, *columns)
    assert [split.train.of(k).tolist() for k in range(2)] == [[0, 2], [1]]
    assert [split.test.of(k).tolist() for k in range(2)] == [[1], [0]]


def test_another_owner_is_another_data_set(root):
    path = table(root, lines(TRAIN))
    before = image_folder(root, columns=path).fingerprint()
    table(root, lines(TRAIN | {"train/dog/a.png": "South"}))
    assert image_folder(root, columns=path).fingerprint() != before


ROWS = lines(TRAIN)


@pytest.mark.parametrize(
    ("header", "rows", "sentence"),
    [
        ("file;hospital", ROWS, r"must begin with .*, but it begins with 'file;hospital'\.$"),
        ("name,hospital", ROWS, r"must begin with a line of different names, file and .*'name,hospital'"),
        ("file,a,a", ROWS, r"must begin with .*'file,a,a'"),
        ("file", [], r"must begin with .*'file'"),
        ("file,hospital", ROWS[:2], r"must have a row for every image, but 'train/dog/a\.png' has none"),
        ("file,hospital", [*ROWS, "test/cat/a.png,South"], r"every image, but 'test/dog/a\.png' has none"),
        (
            "file,hospital",
            [*ROWS, "train/cat/c.png,North"],
            r"must name images .* 'train/cat/c\.png' is none",
        ),
        ("file,hospital", [*ROWS, ROWS[0]], r"once, but line 5 names 'train/cat/a\.png' again"),
        (
            "file,hospital",
            ["train/cat/a.png,"],
            r"a value for each of file, hospital .* line 2 is 'train/cat/a",
        ),
        ("file,hospital", ["", "train/cat/a.png,x,y"], r"line 3 is 'train/cat/a\.png,x,y'"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(root, header, rows, sentence):
    with pytest.raises(DataError, match=sentence) as caught:
        image_folder(root, columns=table(root, rows, header))
    assert "hospitals.csv" in str(caught.value)


@pytest.mark.parametrize(
    "make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_bytes(b"\xff")]
)
def test_a_table_that_cannot_be_read_is_refused(root, make):
    path = root / "owners.csv"
    make(path)
    with pytest.raises(
        DataError, match=r"data\.loader\.columns must be a readable CSV file, but .*owners\.csv is not \("
    ):
        image_folder(root, columns=path)
