# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The other side of the row `data`: Hugging Face's tokenizer and Megatron-core's own builder.

    python -m benchmarks.data_peer INPUT VOCABULARY MERGES PREFIX

One document after the other, as Megatron-LM's preprocess_data.py feeds them to the builder, without
its pool of processes and what they hand to each other.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

END = "<|endoftext|>"


def main(source: str, vocabulary: str, merges: str, prefix: str) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import numpy
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer: Any = Tokenizer(models.BPE.from_file(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    end = tokenizer.token_to_id(END)
    builder = IndexedDatasetBuilder(f"{prefix}_text_document.bin", dtype=numpy.uint16)
    with open(source, encoding="utf-8") as file:
        for line in file:
            tokens = tokenizer.encode(json.loads(line)["text"]).ids
            if tokens:
                tokens.append(end)
            builder.add_document(tokens, [len(tokens)] if tokens else [])
    builder.finalize(f"{prefix}_text_document.idx")


if __name__ == "__main__":
    main(*sys.argv[1:])
