"""What the estimators of all frameworks share: the store, the data, the parameters, the backend that starts the ranks."""
