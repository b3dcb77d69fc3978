"""Commands for people with access to an environment in AWS."""
