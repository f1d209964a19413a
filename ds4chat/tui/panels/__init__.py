"""The live panels beside the transcript."""
