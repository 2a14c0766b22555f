"""Serve a load of requests on replicas of a model: schedulers, KV cache, routers, disaggregated prefill."""
