"""What the document cannot say about valid requests."""

import schemathesis
from hypothesis import strategies as st

UNITS = ["ms", "s", "second", "minute", "h", "hours", "day", "week", "month", "year"]

counts = st.integers(1, 1000)
units = st.sampled_from(UNITS)

schemathesis.openapi.format("rate", st.builds("{}/{}".format, counts, units))
schemathesis.openapi.format("host", st.sampled_from(["a", "api.example.com", "[::1]:8080"]))
for ids in ("permit-id", "reservation-id"):
    schemathesis.openapi.format(ids, st.from_regex(r"[0-9a-f]{32}", fullmatch=True))


@schemathesis.hook
def filter_body(context, body):
    """Two rates of one name cannot count the same key in one request."""
    if not isinstance(body, dict):
        return True
    checks, descriptors = body.get("checks"), body.get("descriptors")
    return not (repeats(checks, "key") or repeats(descriptors, "limit"))


def repeats(items, field):
    """Returns whether two items have the same value, or for limits any value."""
    if not isinstance(items, list):
        return False
    values = [repr(item.get(field)) for item in items if isinstance(item, dict)]
    if field == "limit":
        return sum(value != "None" for value in values) > 1
    return len(set(values)) < len(values)
