# SPDX-License-Identifier: Apache-2.0
"""Each allocation of the kernel modules is made to fail by a test: tests/kmod/failures/sites.py lists them.

On the debug kernel, the log shows that the allocation really failed there. This file tests how the log is read.
"""

import re
from pathlib import Path

from tests.kmod.failures.sites import TESTED, UNTESTED, UNTOLD, failed, missed

ROOT = Path(__file__).resolve().parents[2]
KMOD = ROOT / "kmod"

COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
# In kernel style, only the start and the end of a function are at the left margin.
FUNCTION = re.compile(r"^\w[^;{}]*?\b(\w+)\([^;{}]*\)[^;{}()]*\n\{\n(.*?)^\}", re.DOTALL | re.MULTILINE)
# A call that needs memory has a telling name or takes GFP flags, after arguments that may themselves be calls.
BY_NAME = r"\w*(?:alloc|create|dup|enable_device|getfile|insert_page|iomap|msg_new|(?<!un)(?<!de)register|request_)\w*"
CALL = re.compile(rf"\b(?:({BY_NAME})\(|(\w+)\((?=(?:[^();]|\([^()]*\))*\bGFP_))")


def sites(text: str) -> dict[str, list[str]]:
    """Return the calls that may run out of memory, by function; "" is the text outside functions. Calls of `vgpu_`
    functions are left out.
    """
    text = COMMENT.sub("", text)
    found: dict[str, list[str]] = {}
    for name, body in [*FUNCTION.findall(text), ("", FUNCTION.sub("", text))]:
        calls = sorted(by_name or by_flags for by_name, by_flags in CALL.findall(body))
        if calls := [call for call in calls if not call.startswith("vgpu_")]:
            found[name] = calls
    return found


def sources() -> list[str]:
    paths = [path for path in (*KMOD.glob("*.[ch]"), *KMOD.glob("*/*.[ch]")) if path.parent.name != "kunit"]
    found = {path.relative_to(KMOD): sites(path.read_text()) for path in paths}
    return sorted(f"{path} {name} {call}" for path, of in found.items() for name, calls in of.items() for call in calls)


def test_every_allocation_is_let_fail_by_a_test() -> None:
    named = [(site, calls) for of in (*TESTED.values(), UNTESTED) for site, calls in of.items()]
    assert sorted(f"{site} {call}" for site, calls in named for call in calls.split()) == sources()


def test_each_of_these_tests_is_there() -> None:
    named = [test.partition("[")[0].split("::") for test in TESTED]
    assert [test for file, test in named if f"\ndef {test}(" not in (ROOT / file).read_text()] == []


def test_the_log_is_told_of_all_but_who_asked_that_it_is_not() -> None:
    for site, calls in UNTOLD.items():
        path, name = site.split()
        (body,) = (body for found, body in FUNCTION.findall((KMOD / path).read_text()) if found == name)
        assert len(re.findall(r"__GFP_NOWARN", body)) == len(calls.split()), site


def told(*frames: str, kind: str = "failslab") -> str:
    """Return the kernel's message about a failure."""
    stack = "".join(f" {frame}\n" for frame in ("dump_stack_lvl+0x64/0x80", "should_fail_ex+0x5/0xa", *frames))
    return (
        f"FAULT_INJECTION: forcing a failure.\nname {kind}, interval 1, probability 0, space 0, times 0\n"
        f"CPU: 1 UID: 0 PID: 300 Comm: python3\nCall Trace:\n <TASK>\n{stack} </TASK>\nvgpumgr 0000:00:10.0: refused\n"
    )


ASKS = ("soft_start.isra.0+0x53/0x310 [vgpumgr]", "vgpu_engine_start+0x5/0x99 [vgpumgr]", "vfs_write+0x1/0x2")


def test_a_failure_is_that_of_the_function_which_asked() -> None:
    log = told("kmalloc+0x1/0x2", *ASKS) + told("? runs_show+0x7/0x9 [vgpumgr]", *ASKS) + told("vfs_write+0x1/0x2")
    assert failed(log) == {("vgpumgr", "soft_start"): {"0x53"}}


def test_of_copies_only_a_duplicates_is_one_of_memory() -> None:
    asks = "vgpu_set_irqs+0x40/0x99 [vgpumgr]"
    log = told("_copy_from_user+0x1/0x2", *ASKS, kind="fail_usercopy")
    log += told("_copy_from_user+0x1/0x2", "memdup_user+0x1/0x2", asks, kind="fail_usercopy")
    assert failed(log) == {("vgpumgr", "vgpu_set_irqs"): {"0x40"}}


def test_a_site_is_missed_until_each_of_its_calls_has_failed() -> None:
    test, site = next((test, site) for test, of in TESTED.items() for site in of if site.endswith(" soft_start"))
    once, again = told(*ASKS), told(ASKS[0].replace("0x53", "0x80"), *ASKS[1:])
    assert site in missed(test, once + once)
    assert site not in missed(test, once + again)


def test_an_allocation_is_found_wherever_it_stands() -> None:
    text = """
#define VGPU_THING() kmalloc(8, GFP_KERNEL)

static struct thing *vgpu_thing_create(struct vgpu_device *device,
\t\t\t\t       u64 bytes)
{
\t/* kmalloc() would do */
\tstruct thing *thing = kzalloc(struct_size(thing, many, 3), GFP_KERNEL);

\tif (strange(kstrdup(name, flags),
\t\t    min(bytes, 3), GFP_KERNEL) || vgpu_other_create(thing))
\t\tgoto free;
\treturn thing;

free:
\tmisc_deregister(&thing->misc);
\treturn ERR_PTR(-ENOMEM);
}

int vgpu_all_init(void)
\t__acquires(&lock)
{
\treturn misc_register(&misc) ?: vgpu_thing_init();
}
"""
    assert sites(text) == {
        "": ["kmalloc"],
        "vgpu_thing_create": ["kstrdup", "kzalloc", "strange"],
        "vgpu_all_init": ["misc_register"],
    }
