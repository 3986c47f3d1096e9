"""The trained model as a product: a folder with the model in a format of other programs, its input and a model card."""
