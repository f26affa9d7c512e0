"""Tweets in the form of Sentiment140, written for a test; used by several folders of tests."""

import csv
from pathlib import Path


def tiny_tweets(root: Path, num_users: int = 10, each: int = 12) -> list[str]:
    """Write a few tweets in the form of Sentiment140 and give the overrides that read all of them."""
    words = ("rain", "sun", "tea", "code", "train")
    rows = [
        [
            4 * (i % 2),
            user * each + i,
            "Mon",
            "NO_QUERY",
            f"user{user}",
            f"{words[i % 5]} {words[(i * user) % 5]}",
        ]
        for user in range(num_users)
        for i in range(each)
    ]
    root.mkdir(parents=True, exist_ok=True)
    with open(root / "tweets.csv", "w", encoding="latin-1", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
    return [f"data.root={root}", "data.loader.sample_fraction=1.0", "data.loader.min_tweets=2",
            "data.loader.num_users=null"]  # fmt: skip
