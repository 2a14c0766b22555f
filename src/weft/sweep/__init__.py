"""Many runs: parallel over processes, each answer kept on disk by its content, resumable."""
