"""The dashboard's sources (src/), what bundles them (build.mjs), and the files that are served (dist/, not in the
repository)."""

__all__: list[str] = []
