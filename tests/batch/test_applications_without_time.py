"""An application whose handlers do not ask for the time knows nothing of moments."""

import subprocess
import sys

SCRIPT = """
import sys
from streamfold import App, Count, Key, Router, Row
from streamfold.testing import Twin
router = Router()

@router.view(Key("A#{a}", "B"), into=Key("C#{c}", "D"))
def counted(item):
    return Row(c=item["c"], items=Count())

twin = Twin(App("plain", routers=[router]))
twin.put(Key("A#{a}", "B"), a="1", c="x")
assert twin.rows(Key("C#{c}", "D"))
twin.clock.advance(60)
print(sorted(name for name in sys.modules if name.endswith((".wakes",))))
"""


def test_a_batch_without_a_handler_that_asks_for_the_time_loads_no_module_of_wakes():
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
