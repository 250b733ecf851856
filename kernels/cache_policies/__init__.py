"""What a KV cache may forget, or keep less exactly, and what that does to the output of attention.

| module | what it says |
|---|---|
| ``policies.py`` | who is evicted: nobody, the oldest, all but sinks and a window, who was looked at least |
| ``storage.py`` | how a token is kept: in 16 bits, or quantised; and in how many bytes |
| ``stream.py`` | token after token through a policy and a storage, beside a full cache |

numpy and float64; arrays are ``[batch, heads, len, dim]``, keys and values with as many heads as queries, or
fewer that consecutive groups share.
"""
