"""Container matching: which container an Allocate call is for.

The kubelet names device ids in an Allocate call, and no container. The agent guesses the likeliest
container at once, and corrects the guess when the kubelet reports which container has which ids.

- `guess`: the likeliest container when the call comes.
- `confirm`: the right container, from the kubelet's PodResources interface.
"""
