"""LIBERO: the words of its tasks (vocabulary.json) and the entities of its scenes (manifest.json)."""
