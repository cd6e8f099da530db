"""Control socket of the recorder and its replies."""
