"""Equal-time study: who trains the better retriever in the same minutes on the same processors."""
