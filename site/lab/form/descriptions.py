"""Reading what the registry says of options and findings."""

import re

# "Tokens to a chunk; null: what suits the machine." So a description says what null stands for.
NULL_CLAUSE = re.compile(r"[;,]?\s*\(?\b[Nn]ull: ((?:[^;.()]|\.(?=\d))+)\)?")


def explained(description: str) -> tuple[str, str]:
    """The description, and what it says of null ("" where nothing), which is shown where the null is."""
    clause = NULL_CLAUSE.search(description)
    if clause is None:
        return description, ""
    before, after = description[: clause.start()].rstrip(), description[clause.end() :].lstrip(" .")
    if before and not before.endswith(".") and description.endswith("."):
        before += "."
    return " ".join(filter(None, (before, after))), clause[1].strip()
