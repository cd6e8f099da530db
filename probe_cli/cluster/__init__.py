"""Several endpoints: which ones are meant, asking them at once, and naming those that did not answer."""

__all__: list[str] = []
