"""The web page of a job: what an engineer opens in a browser to see where and why a pipeline is held back."""
