"""Serving: loads of requests on replicas of a model, by the rules of serving frameworks' schedulers."""
