"""The manifold of tensors of fixed ranks: frames, tangents, retraction."""
