"""The prices that ship with the product, made from the tables of two pinned wheels: `make price-book`.

litellm's table says what a model costs (`entries`, `rates`, `book`); genai-prices is only compared with it
(`comparison`), and what differs is in docs/price-book.md (`report`). Of litellm nothing is installed: its table is read
out of the wheel (`sources`). The product needs neither.
"""
