"""Sluice beside zae-limiter on one engine, in one interleaved run: `make compare`.

Each product runs in processes of its own virtual environment (`worker`), which do the same measurements (`measures`)
through the same small interface (`product`). The driver (`run`) lets them take turns: A, B, A, B.
"""
