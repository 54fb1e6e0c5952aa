"""Training sets out of dataset versions: Parquet that TRL and `datasets` read, a card, and a manifest.

`export_training_set` (exporting.py) reads the answers shard by shard (answers.py), lets `tasks.selection` choose,
turns what is chosen into records (records.py), spools each split to the local disk (spool.py), counts (tally.py), and
puts the finished set in place so that no reader ever sees a part of one (place.py). What a set says of itself is its
manifest (manifest.py) and its card (card.py). A new format is a shape in `tasks.selection.pipeline` and its columns
in records.py.
"""
