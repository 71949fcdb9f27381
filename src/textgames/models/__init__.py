"""Language models: loading, chat templates, token sampling, key-value caches and log-probabilities."""
