"""The tensor itself: cores, storage, arithmetic, truncation."""
