"""One module for each SDK: what is called there, and what each function proves."""
