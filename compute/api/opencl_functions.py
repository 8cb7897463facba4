# SPDX-License-Identifier: Apache-2.0
"""The entry points of OpenCL in the order of the standard loader's dispatch table, and how each is implemented."""

from __future__ import annotations

from compute.api.model import Function


def local(name: str, since: str, note: str = "") -> Function:
    """Return an entry point that the client answers by itself."""
    return Function(name, since, "local", note=note)


def remote(name: str, since: str, *messages: str, creates: str = "", destroys: str = "", note: str = "") -> Function:
    """Return an entry point that sends messages."""
    return Function(name, since, "remote", messages, creates, destroys, note=note)


def refused(name: str, since: str, parameters: str, error: str, note: str, result: str = "cl_int") -> Function:
    """Return an entry point that fails with the API's error and logs one line."""
    return Function(name, since, "refused", result=result, parameters=parameters, error=error, note=note)


def empty(*names: str) -> list[Function]:
    """Return entries of sharing extensions that are not offered: NULL, as the loader expects."""
    return [Function(name, "extension", "empty", note="sharing with other APIs is not offered") for name in names]


INVALID = "CL_INVALID_OPERATION"
WAITS = "cl_uint wait_count, const cl_event *waits, cl_event *event"
SVM = "no shared virtual memory: pointers are not valid on the other side; not advertised"
PIPES = "pipes are not offered by the libraries behind it; not advertised"

FUNCTIONS = (
    local("clGetPlatformIDs", "1.0"),
    remote("clGetPlatformInfo", "1.0", "HELLO", note="from HELLO's answer"),
    remote("clGetDeviceIDs", "1.0", "HELLO", note="from HELLO's answer"),
    remote("clGetDeviceInfo", "1.0", "HELLO", note="from HELLO's answer; what cannot be carried is masked"),
    remote("clCreateContext", "1.0", "CREATE_CONTEXT", creates="CONTEXT"),
    remote("clCreateContextFromType", "1.0", "CREATE_CONTEXT", creates="CONTEXT"),
    local("clRetainContext", "1.0"),
    remote("clReleaseContext", "1.0", "RELEASE", destroys="CONTEXT"),
    local("clGetContextInfo", "1.0"),
    remote("clCreateCommandQueue", "1.0", "CREATE_QUEUE", creates="QUEUE"),
    local("clRetainCommandQueue", "1.0"),
    remote("clReleaseCommandQueue", "1.0", "FLUSH", "RELEASE", destroys="QUEUE"),
    local("clGetCommandQueueInfo", "1.0"),
    refused(
        "clSetCommandQueueProperty",
        "1.0",
        "cl_command_queue queue, cl_command_queue_properties properties, cl_bool enable, "
        "cl_command_queue_properties *old",
        INVALID,
        "deprecated since 1.1; today's libraries fail it too",
    ),
    remote("clCreateBuffer", "1.0", "CREATE_BUFFER", creates="MEMORY"),
    remote("clCreateImage2D", "1.0", "CREATE_IMAGE", creates="MEMORY"),
    remote("clCreateImage3D", "1.0", "CREATE_IMAGE", creates="MEMORY"),
    local("clRetainMemObject", "1.0"),
    remote("clReleaseMemObject", "1.0", "RELEASE", destroys="MEMORY"),
    remote("clGetSupportedImageFormats", "1.0", "GET_IMAGE_FORMATS"),
    local("clGetMemObjectInfo", "1.0"),
    local("clGetImageInfo", "1.0"),
    remote("clCreateSampler", "1.0", "CREATE_SAMPLER", creates="SAMPLER"),
    local("clRetainSampler", "1.0"),
    remote("clReleaseSampler", "1.0", "RELEASE", destroys="SAMPLER"),
    local("clGetSamplerInfo", "1.0"),
    remote("clCreateProgramWithSource", "1.0", "CREATE_PROGRAM_WITH_SOURCE", creates="PROGRAM"),
    remote("clCreateProgramWithBinary", "1.0", "CREATE_PROGRAM_WITH_BINARY", creates="PROGRAM"),
    local("clRetainProgram", "1.0"),
    remote("clReleaseProgram", "1.0", "RELEASE", destroys="PROGRAM"),
    remote("clBuildProgram", "1.0", "BUILD_PROGRAM", note="files that the source includes travel along"),
    local("clUnloadCompiler", "1.0", "a hint that is not needed"),
    remote("clGetProgramInfo", "1.0", "GET"),
    remote("clGetProgramBuildInfo", "1.0", "GET"),
    remote("clCreateKernel", "1.0", "CREATE_KERNEL", creates="KERNEL"),
    remote("clCreateKernelsInProgram", "1.0", "GET", "CREATE_KERNEL", creates="KERNEL"),
    local("clRetainKernel", "1.0"),
    remote("clReleaseKernel", "1.0", "RELEASE", destroys="KERNEL"),
    local("clSetKernelArg", "1.0", "kept until the launch, which carries all arguments"),
    local("clGetKernelInfo", "1.0", "from CREATE_KERNEL's answer"),
    remote("clGetKernelWorkGroupInfo", "1.0", "CREATE_KERNEL", "GET", note="mostly from CREATE_KERNEL's answer"),
    local("clWaitForEvents", "1.0", "completions come by themselves"),
    local("clGetEventInfo", "1.0", "CL_SUBMITTED and CL_RUNNING are seen where the child tells of them"),
    local("clRetainEvent", "1.0"),
    remote("clReleaseEvent", "1.0", "RELEASE", destroys="EVENT"),
    local("clGetEventProfilingInfo", "1.0", "the times come with the completion"),
    remote("clFlush", "1.0", "FLUSH"),
    remote("clFinish", "1.0", "FINISH"),
    remote("clEnqueueReadBuffer", "1.0", "READ_BUFFER", creates="EVENT"),
    remote("clEnqueueWriteBuffer", "1.0", "WRITE_BUFFER", creates="EVENT"),
    remote("clEnqueueCopyBuffer", "1.0", "COPY_BUFFER", creates="EVENT"),
    remote("clEnqueueReadImage", "1.0", "READ_IMAGE", creates="EVENT"),
    remote("clEnqueueWriteImage", "1.0", "WRITE_IMAGE", creates="EVENT"),
    remote("clEnqueueCopyImage", "1.0", "COPY_IMAGE", creates="EVENT"),
    remote("clEnqueueCopyImageToBuffer", "1.0", "COPY_IMAGE_TO_BUFFER", creates="EVENT"),
    remote("clEnqueueCopyBufferToImage", "1.0", "COPY_BUFFER_TO_IMAGE", creates="EVENT"),
    remote("clEnqueueMapBuffer", "1.0", "MAP_BUFFER", "READ_BUFFER", creates="EVENT"),
    remote("clEnqueueMapImage", "1.0", "READ_IMAGE", creates="EVENT"),
    remote("clEnqueueUnmapMemObject", "1.0", "UNMAP", "WRITE_BUFFER", "WRITE_IMAGE", creates="EVENT"),
    remote("clEnqueueNDRangeKernel", "1.0", "LAUNCH", creates="EVENT"),
    remote("clEnqueueTask", "1.0", "LAUNCH", creates="EVENT"),
    refused(
        "clEnqueueNativeKernel",
        "1.0",
        "cl_command_queue queue, void (CL_CALLBACK *function)(void *), void *arguments, size_t bytes, cl_uint count, "
        f"const cl_mem *memories, const void **where, {WAITS}",
        INVALID,
        "a function of the program cannot run on the host; CL_EXEC_NATIVE_KERNEL is not advertised",
    ),
    remote("clEnqueueMarker", "1.0", "MARKER", creates="EVENT"),
    remote("clEnqueueWaitForEvents", "1.0", "BARRIER"),
    remote("clEnqueueBarrier", "1.0", "BARRIER"),
    local("clGetExtensionFunctionAddress", "1.0"),
    *empty(
        "clCreateFromGLBuffer",
        "clCreateFromGLTexture2D",
        "clCreateFromGLTexture3D",
        "clCreateFromGLRenderbuffer",
        "clGetGLObjectInfo",
        "clGetGLTextureInfo",
        "clEnqueueAcquireGLObjects",
        "clEnqueueReleaseGLObjects",
        "clGetGLContextInfoKHR",
        "clGetDeviceIDsFromD3D10KHR",
        "clCreateFromD3D10BufferKHR",
        "clCreateFromD3D10Texture2DKHR",
        "clCreateFromD3D10Texture3DKHR",
        "clEnqueueAcquireD3D10ObjectsKHR",
        "clEnqueueReleaseD3D10ObjectsKHR",
    ),
    local("clSetEventCallback", "1.1", "called in a thread of the client"),
    remote("clCreateSubBuffer", "1.1", "CREATE_SUB_BUFFER", creates="MEMORY"),
    local("clSetMemObjectDestructorCallback", "1.1"),
    remote("clCreateUserEvent", "1.1", "CREATE_USER_EVENT", creates="EVENT"),
    remote("clSetUserEventStatus", "1.1", "SET_USER_EVENT_STATUS"),
    remote("clEnqueueReadBufferRect", "1.1", "READ_BUFFER_RECT", creates="EVENT"),
    remote("clEnqueueWriteBufferRect", "1.1", "WRITE_BUFFER_RECT", creates="EVENT"),
    remote("clEnqueueCopyBufferRect", "1.1", "COPY_BUFFER_RECT", creates="EVENT"),
    *empty("clCreateSubDevicesEXT", "clRetainDeviceEXT", "clReleaseDeviceEXT", "clCreateEventFromGLsyncKHR"),
    refused(
        "clCreateSubDevices",
        "1.2",
        "cl_device_id device, const cl_device_partition_property *properties, cl_uint count, cl_device_id *devices, "
        "cl_uint *returned",
        "CL_DEVICE_PARTITION_FAILED",
        "a slice is divided by shares of time; CL_DEVICE_PARTITION_MAX_SUB_DEVICES is 0",
    ),
    local("clRetainDevice", "1.2"),
    local("clReleaseDevice", "1.2"),
    remote("clCreateImage", "1.2", "CREATE_IMAGE", creates="MEMORY"),
    remote("clCreateProgramWithBuiltInKernels", "1.2", "CREATE_PROGRAM_WITH_BUILT_IN_KERNELS", creates="PROGRAM"),
    remote("clCompileProgram", "1.2", "COMPILE_PROGRAM"),
    remote("clLinkProgram", "1.2", "LINK_PROGRAM", creates="PROGRAM"),
    local("clUnloadPlatformCompiler", "1.2", "a hint that is not needed"),
    local("clGetKernelArgInfo", "1.2", "from CREATE_KERNEL's answer"),
    remote("clEnqueueFillBuffer", "1.2", "FILL_BUFFER", creates="EVENT"),
    remote("clEnqueueFillImage", "1.2", "FILL_IMAGE", creates="EVENT"),
    remote("clEnqueueMigrateMemObjects", "1.2", "MIGRATE", creates="EVENT"),
    remote("clEnqueueMarkerWithWaitList", "1.2", "MARKER", creates="EVENT"),
    remote("clEnqueueBarrierWithWaitList", "1.2", "BARRIER", creates="EVENT"),
    local("clGetExtensionFunctionAddressForPlatform", "1.2"),
    *empty(
        "clCreateFromGLTexture",
        "clGetDeviceIDsFromD3D11KHR",
        "clCreateFromD3D11BufferKHR",
        "clCreateFromD3D11Texture2DKHR",
        "clCreateFromD3D11Texture3DKHR",
        "clCreateFromDX9MediaSurfaceKHR",
        "clEnqueueAcquireD3D11ObjectsKHR",
        "clEnqueueReleaseD3D11ObjectsKHR",
        "clGetDeviceIDsFromDX9MediaAdapterKHR",
        "clEnqueueAcquireDX9MediaSurfacesKHR",
        "clEnqueueReleaseDX9MediaSurfacesKHR",
        "clCreateFromEGLImageKHR",
        "clEnqueueAcquireEGLObjectsKHR",
        "clEnqueueReleaseEGLObjectsKHR",
        "clCreateEventFromEGLSyncKHR",
    ),
    remote(
        "clCreateCommandQueueWithProperties", "2.0", "CREATE_QUEUE", creates="QUEUE", note="no queues on the device"
    ),
    refused(
        "clCreatePipe",
        "2.0",
        "cl_context context, cl_mem_flags flags, cl_uint packet_bytes, cl_uint packets, "
        "const cl_pipe_properties *properties, cl_int *error",
        INVALID,
        PIPES,
        "cl_mem",
    ),
    refused(
        "clGetPipeInfo",
        "2.0",
        "cl_mem pipe, cl_pipe_info param, size_t bytes, void *value, size_t *returned",
        "CL_INVALID_MEM_OBJECT",
        PIPES,
    ),
    refused(
        "clSVMAlloc",
        "2.0",
        "cl_context context, cl_svm_mem_flags flags, size_t bytes, cl_uint alignment",
        INVALID,
        SVM,
        "void *",
    ),
    refused("clSVMFree", "2.0", "cl_context context, void *pointer", INVALID, SVM, "void"),
    refused(
        "clEnqueueSVMFree",
        "2.0",
        "cl_command_queue queue, cl_uint count, void *pointers[], "
        "void (CL_CALLBACK *function)(cl_command_queue, cl_uint, void *[], void *), void *user, " + WAITS,
        INVALID,
        SVM,
    ),
    refused(
        "clEnqueueSVMMemcpy",
        "2.0",
        f"cl_command_queue queue, cl_bool blocking, void *target, const void *source, size_t bytes, {WAITS}",
        INVALID,
        SVM,
    ),
    refused(
        "clEnqueueSVMMemFill",
        "2.0",
        f"cl_command_queue queue, void *target, const void *pattern, size_t pattern_bytes, size_t bytes, {WAITS}",
        INVALID,
        SVM,
    ),
    refused(
        "clEnqueueSVMMap",
        "2.0",
        f"cl_command_queue queue, cl_bool blocking, cl_map_flags flags, void *pointer, size_t bytes, {WAITS}",
        INVALID,
        SVM,
    ),
    refused("clEnqueueSVMUnmap", "2.0", f"cl_command_queue queue, void *pointer, {WAITS}", INVALID, SVM),
    remote("clCreateSamplerWithProperties", "2.0", "CREATE_SAMPLER", creates="SAMPLER"),
    refused("clSetKernelArgSVMPointer", "2.0", "cl_kernel kernel, cl_uint index, const void *value", INVALID, SVM),
    refused(
        "clSetKernelExecInfo",
        "2.0",
        "cl_kernel kernel, cl_kernel_exec_info param, size_t bytes, const void *value",
        INVALID,
        SVM,
    ),
    remote("clGetKernelSubGroupInfoKHR", "extension", "GET"),
    remote("clCloneKernel", "2.1", "CREATE_KERNEL", creates="KERNEL"),
    refused(
        "clCreateProgramWithIL",
        "2.1",
        "cl_context context, const void *code, size_t bytes, cl_int *error",
        INVALID,
        "no intermediate language; CL_DEVICE_IL_VERSION is empty",
        "cl_program",
    ),
    refused(
        "clEnqueueSVMMigrateMem",
        "2.1",
        "cl_command_queue queue, cl_uint count, const void **pointers, const size_t *bytes, "
        f"cl_mem_migration_flags flags, {WAITS}",
        INVALID,
        SVM,
    ),
    refused(
        "clGetDeviceAndHostTimer",
        "2.1",
        "cl_device_id device, cl_ulong *device_ns, cl_ulong *host_ns",
        INVALID,
        "CL_PLATFORM_HOST_TIMER_RESOLUTION is 0",
    ),
    refused(
        "clGetHostTimer",
        "2.1",
        "cl_device_id device, cl_ulong *host_ns",
        INVALID,
        "CL_PLATFORM_HOST_TIMER_RESOLUTION is 0",
    ),
    remote("clGetKernelSubGroupInfo", "2.1", "GET"),
    refused(
        "clSetDefaultDeviceCommandQueue",
        "2.1",
        "cl_context context, cl_device_id device, cl_command_queue queue",
        INVALID,
        "no queues on the device",
    ),
    refused(
        "clSetProgramReleaseCallback",
        "2.2",
        "cl_program program, void (CL_CALLBACK *function)(cl_program, void *), void *user",
        INVALID,
        "deprecated; there are no program scope destructors",
    ),
    refused(
        "clSetProgramSpecializationConstant",
        "2.2",
        "cl_program program, cl_uint id, size_t bytes, const void *value",
        INVALID,
        "no intermediate language",
    ),
    remote("clCreateBufferWithProperties", "3.0", "CREATE_BUFFER", creates="MEMORY"),
    remote("clCreateImageWithProperties", "3.0", "CREATE_IMAGE", creates="MEMORY"),
    local("clSetContextDestructorCallback", "3.0"),
)
