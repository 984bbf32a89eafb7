"""The cost model: features, training, offline models, transfer."""
