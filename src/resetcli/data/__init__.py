"""Problems and texts: where they come from (a folder, the Hugging Face hub, our own file) and what a row holds."""
