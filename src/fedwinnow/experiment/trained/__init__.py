"""The model of a finished run: loaded without the training data, asked about new samples, scored, exported."""
