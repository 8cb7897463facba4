# SPDX-License-Identifier: Apache-2.0
"""The agent's state directory, and the enrolment that creates it."""

import contextlib
import errno
from pathlib import Path
from uuid import uuid4

import pytest
from vgpumgr_agent.api import ApiRefusedError
from vgpumgr_agent.store import FRESH_S, StateError, Store

from tests.agent.fakeapi import FakeApi, claim, group
from tests.agent.host import VM, A, B, C, FakeClock, Host


def test_a_second_agent_is_kept_out(host: Host) -> None:
    with pytest.raises(StateError, match="another vgpumgr-agent"):
        Store(host.directory / "state", host.clock)


def test_the_agents_epoch_grows_with_each_start(host: Host) -> None:
    assert host.store is not None
    before = host.store.agent_epoch
    host.restart()
    assert host.store.agent_epoch > before


def test_damaged_state_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/desired.json").write_text("{}")
    with pytest.raises(StateError, match="damaged"):
        Store(tmp_path / "state", FakeClock())


def test_a_full_disk_is_not_taken_for_damage(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert host.store is not None
    host.store.close()
    with monkeypatch.context() as patch:
        patch.setattr("vgpumgr_agent.store.write_durably", full)
        with pytest.raises(StateError, match="No space left on device; free space") as error:
            Store(host.directory / "state", host.clock)
    assert "empty it" not in str(error.value)
    host.store = Store(host.directory / "state", host.clock)


def test_enrolment_happens_once_and_again_only_with_a_new_one_time_token(host: Host, api: FakeApi) -> None:
    host.learn()
    token = api.token
    assert (host.directory / "state/credentials.json").stat().st_mode & 0o777 == 0o600
    host.restart()
    host.learn()
    assert api.token == token
    api.token = "revoked"
    with contextlib.suppress(Exception):
        host.learn()
    assert (api.token, api.enrolments) == ("revoked", 1)
    api.one_time_tokens.add("second")
    host.token_file.write_text("second\n")
    with contextlib.suppress(Exception):
        host.learn()
    host.learn()
    assert api.token not in (token, "revoked")


def test_made_anew_as_another_host_it_says_whose_claims_it_has_and_obeys_an_operators_word(
    claimed: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, old = claimed.api, claimed.api.host_id
    monkeypatch.setattr(api, "_is_host", lambda _: None)
    claimed.start(A)
    claimed.kernel.open(str(A))
    api.token, api.host_id = "revoked", uuid4()
    api.one_time_tokens.add("second")
    claimed.token_file.write_text("second\n")
    epoch = api.document.epoch  # its (epoch, generation) may be a pair that the agent has seen
    api.set(host_id=api.host_id, epoch_confirmed=False, slices=[], groups=[], generation=api.document.generation)
    with contextlib.suppress(ApiRefusedError):
        claimed.learn()
    assert api.claims_of == [None, old]
    claimed.learn()
    claimed.start(B)
    assert (api.last().desired_epoch, len(api.last().refusals)) == (None, 4)

    claimed.restart()
    api.set(epoch_confirmed=True)
    claimed.learn()
    assert api.last().desired_epoch == epoch
    assert claimed.slices() == {A, B}
    assert claimed.refused(metadata=(B,)) == claimed.refused(A) == "claim.missing"
    api.set(slices=[claim(C, vm=VM)], groups=[group("blue", 600)])
    claimed.learn()
    claimed.start(C)
    api.delete(C, groups=[])
    claimed.learn()
    assert claimed.slices() == {A, B}


def test_what_was_kept_is_fresh_only_once_the_api_has_answered_again(claimed: Host) -> None:
    claimed.restart()
    assert claimed.store is not None
    assert (claimed.store.heard, claimed.store.fresh()) == (False, False)
    claimed.learn()
    assert (claimed.store.heard, claimed.store.fresh()) == (True, True)
    claimed.clock.go(FRESH_S + 1)
    assert (claimed.store.heard, claimed.store.fresh()) == (True, False)
