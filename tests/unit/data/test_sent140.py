import csv
import gzip
import shutil
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfeat.config.arguments import check_targets
from fedfeat.data.federated import FederatedData
from fedfeat.data.partition.schemes import Natural
from fedfeat.data.sent140 import drawn_users, sampled, sent140, split_users
from fedfeat.data.sent140_file import ORIGINAL, find_csv, read_tweets
from fedfeat.data.sent140_tokens import encode, frequent_words, read_glove, tokens_of
from fedfeat.data.transforms import none
from fedfeat.data.unlabelled import images_by_class
from fedfeat.errors import ConfigError, DataError

REAL = Path(__file__).parents[4] / "shared" / "data" / "sentiment140-sample.csv.gz"
AUTHORS = ["quillfern", "mossbadger", "tinkerowl", "loneheron"]
SIZES = [10, 10, 5, 1]


def write(path, rows, encoding="latin-1"):
    """Write (target, user, text) as the original does: six quoted columns, no header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding=encoding, newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(
            [target, number, "Mon", "NO_QUERY", user, text]
            for number, (target, user, text) in enumerate(rows)
        )
    return path


@pytest.fixture
def rows():
    """26 tweets in mixed order; tweet i is the single word that only it has."""
    authors = [author for author, size in zip(AUTHORS, SIZES, strict=True) for _ in range(size)]
    order = np.random.default_rng(5).permutation(len(authors))
    return [("024"[i % 3], authors[place], f"zest{i}") for i, place in enumerate(order)]


@pytest.fixture
def root(tmp_path, rows):
    """A folder with these tweets and vectors for all their words, in the order of the tweets."""
    folder = tmp_path / "data"
    write(folder / "sent140" / "tweets.csv", rows)
    (folder / "vectors.txt").write_text("".join(f"{text} {i} -1.5\n" for i, (*_, text) in enumerate(rows)))
    return folder


def load(root, **options):
    return sent140(root, **{"sample_fraction": 1.0, "min_tweets": 2, "num_users": None} | options)


def tweets_in(examples, vocabulary):
    """Which tweets a split has: the vector of the only word of tweet i begins with i."""
    return vocabulary.vectors[examples.inputs[:, 0].long(), 0].int().tolist()


def test_a_token_is_a_word_or_one_of_five_marks():
    assert tokens_of("Don't stop, no! #yes a-b", 25, False) == [
        "Don't",
        "stop",
        ",",
        "no",
        "!",
        "yes",
        "a",
        "b",
    ]
    assert tokens_of("Two Words. More", 3, True) == ["two", "words", "."]


def test_the_most_frequent_words_are_numbered_from_one():
    texts = [["b", "a", "b"], ["c", "a", "d", "d", "d"]]
    assert frequent_words(texts, 9) == {"d": 1, "a": 2, "b": 3, "c": 4}
    assert frequent_words(texts, 2) == {"d": 1, "a": 2}


def test_unknown_words_and_the_room_behind_a_text_are_zero():
    table = encode([["x", "y", "x"], [], ["q", "y"]], {"x": 1, "y": 2}, 4)
    assert table.dtype == torch.int32
    assert table.tolist() == [[1, 2, 1, 0], [0, 0, 0, 0], [0, 2, 0, 0]]


def test_vectors_of_wanted_words_alone_are_read(tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text("the 0.5 1\n. -2 3\nunused 9 9\nthe 7 7\n. . 8 8\n")
    ids, vocabulary = read_glove(path, {".", "the", "absent"})
    assert ids == {"the": 1, ".": 2}
    assert vocabulary.size == 3
    assert vocabulary.vectors.dtype == torch.float32
    assert vocabulary.vectors.tolist() == [[0, 0], [0.5, 1], [-2, 3]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a 1 2\nb 1\n", "must have a word and 2 finite numbers in every line, but line 2 has not"),
        (b"a 1 2\nb 1 x\n", "but line 2 has not"),
        (b"a 1 2\nb 1 nan\n", "but line 2 has not"),
        (b"c 1 2\n", "must have a vector for some word of the data, but it has none"),
        (b"", "but it has none"),
        (b"a 1 2\nb\xff 1 2\n", "must be UTF-8 text of GloVe vectors"),
        (None, r"data\.loader\.glove must name a readable .*nlp\.stanford\.edu/projects/glove"),
    ],
)
def test_bad_vectors_are_refused(tmp_path, content, message):
    path = tmp_path / "vectors.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_glove(path, {"a", "b"})


def test_every_user_is_cut_four_to_one_and_keeps_labels(root, rows):
    dataset = load(root, embed="glove", glove="vectors.txt")
    train, test = (tweets_in(part, dataset.vocabulary) for part in (dataset.train, dataset.test))
    eligible = {i for i, (_, author, _) in enumerate(rows) if author != AUTHORS[3]}
    assert len(train) + len(test) == len(eligible) == 25
    assert set(train) | set(test) == eligible
    number_of = {}
    for examples, tweets, sizes in ((dataset.train, train, [8, 8, 4]), (dataset.test, test, [2, 2, 1])):
        assert examples.labels.tolist() == [int(rows[i][0] == "4") for i in tweets]
        numbers = examples.columns["user"].tolist()
        for i, number in zip(tweets, numbers, strict=True):
            assert number_of.setdefault(rows[i][1], number) == number
        counts = np.bincount(numbers)
        assert [counts[number_of[author]] for author in AUTHORS[:3]] == sizes
    assert sorted(number_of.values()) == [0, 1, 2]
    assert dataset.classes == ("negative", "positive")
    assert dataset.input_shape == (25,)
    assert dataset.vocabulary.vectors.shape == (26, 2)


def test_a_learned_vocabulary_knows_no_test_text(root):
    dataset = load(root)
    assert dataset.vocabulary == (21, None)
    assert sorted(dataset.train.inputs[:, 0].tolist()) == list(range(1, 21))
    assert not dataset.train.inputs[:, 1:].any()
    assert not dataset.test.inputs.any()
    assert load(root, max_words=7).vocabulary.size == 8
    assert load(root, num_tokens=3).input_shape == (3,)


def test_capitals_count_unless_lowercase(tmp_path):
    write(tmp_path / "t.csv", [("0", "a", "Good good GOOD")] * 5)
    assert load(tmp_path).vocabulary.size == 4
    assert load(tmp_path, lowercase=True).vocabulary.size == 2


def test_the_seed_chooses_users_and_cuts(root):
    one, same, other = (load(root, num_users=2, seed=seed) for seed in (1, 1, 2))
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()
    assert set(one.train.columns["user"]) == set(one.test.columns["user"]) == {0, 1}


def test_the_sample_takes_whole_users_and_cuts_the_last():
    users = np.arange(100) % 20  # five tweets each
    taken = sampled(users, 0.29, seed=3)
    counts = np.bincount(users[taken], minlength=20)
    assert len(taken) == len(set(taken.tolist())) == 29
    assert sorted(counts[counts > 0].tolist()) == [4, 5, 5, 5, 5, 5]
    assert sorted(sampled(users, 1.0, seed=3).tolist()) == list(range(100))
    assert set(sampled(users, 0.5, seed=4).tolist()) != set(sampled(users, 0.5, seed=3).tolist())


def test_only_users_with_enough_tweets_are_drawn():
    users = np.repeat([0, 1, 2, 3], [3, 7, 2, 5])
    assert sorted(drawn_users(users, 3, None, seed=0).tolist()) == [0, 1, 3]
    drawn = {tuple(drawn_users(users, 3, 2, seed=seed).tolist()) for seed in range(60)}
    assert len(drawn) == 6  # all ordered pairs of three
    with pytest.raises(ConfigError, match=r"min_tweets must be at most 7, the most tweets .*, but it is 8\."):
        drawn_users(users, 8, None, seed=0)
    with pytest.raises(ConfigError, match=r"num_users must be at most 3, .* 3 tweets or more, but it is 4\."):
        drawn_users(users, 3, 4, seed=0)


@pytest.mark.parametrize(
    ("size", "fraction", "first"), [(50, 0.8, 40), (2, 0.8, 1), (9, 0.8, 7), (5, 0.01, 1), (100, 0.29, 29)]
)
def test_the_first_part_is_rounded_down_and_neither_is_empty(size, fraction, first):
    users = np.array([8, 0, *[1] * size])
    train, test = split_users(users, np.arange(1, size + 2), np.array([1]), fraction, seed=0)
    assert (len(train), len(test)) == (first, size - first)
    assert sorted([*train, *test]) == list(range(2, size + 2))
    if size == 50:
        assert test.tolist() != list(range(42, 52))  # drawn, not the last ones


def test_users_are_clients_with_their_own_test_parts(root):
    dataset = load(root)
    columns = dataset.train.columns, dataset.test.columns
    labels = dataset.train.labels.numpy(), dataset.test.labels.numpy()
    split = Natural(column="user").split(*labels, 2, 3, 0, *columns)
    for client_id in range(3):
        assert set(columns[0]["user"][split.train.of(client_id)]) == {client_id}
        assert set(columns[1]["user"][split.test.of(client_id)]) == {client_id}
    assert split.test.sizes().sum() == 5


def test_batches_bring_the_ids_as_they_are(root):
    dataset = load(root)
    columns = dataset.train.columns, dataset.test.columns
    labels = dataset.train.labels.numpy(), dataset.test.labels.numpy()
    data = FederatedData(dataset, Natural(column="user").split(*labels, 2, 3, 0, *columns), none())
    for inputs, _ in data.train_batches(1, 0, 0, 3):
        assert inputs.dtype == torch.int32
        assert inputs.shape[1:] == (25,)
    (both,) = data.test_batches(np.arange(5), 8)
    assert torch.equal(both[0], dataset.test.inputs)
    by_class = images_by_class(data, 2, 0)
    assert [tuple(inputs.shape) for inputs in by_class] == [(2, 25), (2, 25)]


def test_where_tweets_are_looked_for(tmp_path):
    single = write(tmp_path / "own.csv", [("0", "a", "b")])
    assert find_csv(tmp_path) == single
    original = write(tmp_path / ORIGINAL, [("0", "a", "b")])
    assert find_csv(tmp_path) == original
    deeper = write(tmp_path / "sent140" / "x.csv", [("0", "a", "b")])
    assert find_csv(tmp_path) == deeper
    write(tmp_path / "sent140" / "y.csv", [("0", "a", "b")])
    assert find_csv(tmp_path) == original
    original.unlink()
    write(tmp_path / "z.csv", [("0", "a", "b")])
    with pytest.raises(
        DataError, match=r"only \*\.csv in either folder, but .* has none .*help\.sentiment140\.com"
    ):
        find_csv(tmp_path)


def test_names_become_numbers_in_the_order_of_the_file(root, rows):
    tweets = read_tweets(find_csv(root))
    order = list(dict.fromkeys(author for _, author, _ in rows))
    assert tweets.users.tolist() == [order.index(author) for _, author, _ in rows]
    assert tweets.texts == [text for *_, text in rows]


SECRET = ("hazelmink", "my secret cafe")
LINE = f'"0","1","Mon","NO_QUERY","{SECRET[0]}","{SECRET[1]}"\n'


@pytest.mark.parametrize(
    ("content", "encoding", "message"),
    [
        (b"", "latin-1", "must hold at least one tweet, but it is empty"),
        (LINE + LINE.replace('"NO_QUERY",', ""), "latin-1", "but row 2 has 5 of them"),
        (
            LINE.replace('"0",', '"POSITIVE",'),
            "latin-1",
            "target 0, 2 or 4 in column 1, but row 1 has another",
        ),
        (LINE.replace('"0",', '"1",'), "latin-1", "target 0, 2 or 4 in column 1, but row 1 has another"),
        (LINE.encode("utf-16"), "latin-1", "target 0, 2 or 4 in column 1, but row 1 has another"),
        (
            LINE.replace("cafe", "café").encode("latin-1"),
            "utf-8",
            "must be text in data.loader.encoding=utf-8",
        ),
        (LINE, "latin-13-b", "data.loader.encoding must name a text encoding, but it is 'latin-13-b'"),
        (LINE + '"0' + "x" * 200_000, "latin-1", "must be a CSV file"),
    ],
    ids=[
        "empty",
        "column",
        "target",
        "binary labels",
        "utf-16",
        "latin-1 as utf-8",
        "no encoding",
        "open quote",
    ],
)
def test_bad_files_are_refused_without_a_word_of_theirs(tmp_path, content, encoding, message):
    (tmp_path / "t.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises((DataError, ConfigError), match=message) as caught:
        load(tmp_path, encoding=encoding)
    shown = "".join(traceback.format_exception(caught.value))
    assert not any(word in shown for word in (*SECRET, "xxx", "POSITIVE"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sample_fraction", 0), ("sample_fraction", 1.5), ("min_tweets", 1), ("min_tweets", "many"),
        ("num_users", 0), ("num_users", 2.5), ("train_fraction", 1), ("lowercase", "yes"), ("num_tokens", 0),
        ("embed", "bert"), ("max_words", 0), ("seed", -1), ("num_train", 0),
    ],
)  # fmt: skip
def test_bad_options_are_refused(key, value):
    with pytest.raises(ConfigError, match=rf"data\.loader\.{key} must .*, but it is {value!r}\."):
        check_targets({"data": {"loader": {"_target_": "fedfeat.data.sent140.sent140", key: value}}})


def overrides(root, *more):
    return (
        "data=sent140", f"data.root={root}", "data.loader.sample_fraction=1.0", "data.loader.min_tweets=2",
        "data.loader.num_users=null", "model=sent140_lstm", "model.embed_dim=4", "model.hidden=3",
        "partition=natural", "partition.column=user", "algorithm=fedavg", "federation.num_clients=3",
        "federation.num_rounds=1", "federation.local_epochs=1", "federation.batch_size=4", "trainer=cpu", *more,
    )  # fmt: skip


def test_nothing_that_a_run_writes_has_a_name_or_a_word(cli, root, tmp_path):
    outcome = cli(*overrides(root))
    assert outcome.code == 0, outcome.stderr
    shutil.rmtree(root)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"clients.csv", "classes.csv", "summary.json"} <= {path.name for path in written}
    for path in written:
        for secret in (*AUTHORS, "zest"):
            assert secret.encode() not in path.read_bytes(), path
    assert not any(secret in outcome.stderr for secret in (*AUTHORS, "zest"))


@pytest.mark.parametrize(
    ("dropped", "more", "message"),
    [
        (
            "data.loader.min",
            "data.loader.min_tweets=99",
            "min_tweets must be at most 10, the most tweets of a user",
        ),
        ("data.root", "data.root=/nowhere", "sent140 must be in data.root as sent140/training.1600000"),
        (
            "model",
            "model=digits_cnn",
            "model must be one that reads tokens, such as sent140_lstm, as the data set",
        ),
    ],
)
def test_refusals_are_one_sentence(cli, root, dropped, more, message):
    outcome = cli(*(word for word in overrides(root) if not word.startswith(dropped)), more)
    assert outcome.code == 2
    assert message in outcome.stderr
    assert len(outcome.stderr.strip().splitlines()) == 1


@pytest.mark.data
def test_the_real_tweets(tmp_path):
    """Counts as the file's own notes give them: users with 8 tweets or more, authors, positive tweets."""
    if not REAL.exists():
        pytest.skip(f"needs the real data in {REAL}")
    with gzip.open(REAL) as packed, open(tmp_path / "sample.csv", "wb") as file:
        shutil.copyfileobj(packed, file)
    tweets = read_tweets(tmp_path / "sample.csv", "utf-8")
    assert (len(tweets.texts), tweets.labels.sum(), tweets.users.max() + 1) == (86_557, 48_357, 72_274)
    dataset = load(tmp_path, encoding="utf-8", min_tweets=8)
    assert len(dataset.train) + len(dataset.test) == 1_336
    assert len(set(dataset.train.columns["user"])) == len(set(dataset.test.columns["user"])) == 125
    with pytest.raises(ConfigError, match="min_tweets must be at most"):
        sent140(tmp_path)
