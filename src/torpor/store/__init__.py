"""The snapshot library: usable without the rest of torpor; knows no lifecycle, node or engine."""
