"""What training did: forgetting, composition, and the like."""
