# SPDX-License-Identifier: Apache-2.0
"""GPUs, as their hosts reported them, with what is claimed of each."""

from fastapi import APIRouter

from vgpumgr.wire.common import Name, Page
from vgpumgr.wire.resources import Gpu
from vgpumgr_api.call import CallDep, PageDep
from vgpumgr_api.services import gpus
from vgpumgr_api.strict import Route

router = APIRouter(prefix="/v1/gpus", tags=["gpus"], route_class=Route)


@router.get("")
def list_gpus(call: CallDep, page: PageDep, host: Name | None = None) -> Page[Gpu]:
    """GPUs of all hosts or of one."""
    return call.read(gpus.list_gpus, page, host=host)
