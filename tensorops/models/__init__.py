"""Language models written in tensorops operators: the reader, the tokenizer and the network.

Install what they need with ``pip install 'tensorops[models]'``.
"""
