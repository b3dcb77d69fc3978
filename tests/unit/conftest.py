"""`--hypothesis-profile=soak`: twenty times as many examples of every property."""

from hypothesis import settings

settings.register_profile("soak", max_examples=20 * settings().max_examples, deadline=None)
