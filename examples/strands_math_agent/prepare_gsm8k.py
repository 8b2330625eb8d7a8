"""GSM8K from Hugging Face as the agent's rows: `python prepare_gsm8k.py train > train.jsonl`.

    {"idx": 0, "prompt": "How many …?", "answer": "42", "data_source": "gsm8k"}

An answer of GSM8K is worked out in words and ends in `#### 42`; a row has what follows. The working is not in it.
"""

import argparse
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

_END = "####"


def rows(dataset: str, split: str) -> Iterator[dict[str, Any]]:
    """All problems of a split; `dataset` is a name on the hub, or a folder with the same files."""
    from datasets import load_dataset

    try:
        entries = load_dataset(dataset, "main", split=split)
    except Exception as error:  # a dozen kinds, by what was not reached
        raise SystemExit(f"{dataset} can't be loaded: {error}\nhint: --dataset takes a folder, too") from error
    for index, entry in enumerate(entries):
        yield {
            "idx": index,
            "prompt": entry["question"].strip(),
            "answer": final_answer(entry["answer"]),
            "data_source": "gsm8k",
        }


def final_answer(worked_out: str) -> str:
    """The number at the end, without thousands separators.

    >>> final_answer("She sells 500 * 2 = 1000 eggs, and 24 more.\\n#### 1,024")
    '1024'
    """
    _, found, answer = worked_out.rpartition(_END)
    if not found:
        raise ValueError(f"an answer without {_END}: {worked_out[-80:]!r}")
    return answer.strip().replace(",", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("split", choices=("train", "test"))
    parser.add_argument(
        "--dataset", default="openai/gsm8k", help="a name on the hub, or a folder (default: openai/gsm8k)"
    )
    parser.add_argument("--limit", type=int, help="only the first problems")
    args = parser.parse_args()
    for row in islice(rows(args.dataset, args.split), args.limit):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
