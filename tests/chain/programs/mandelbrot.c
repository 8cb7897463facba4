// SPDX-License-Identifier: Apache-2.0
/*
 * Draws the Mandelbrot set on the first OpenCL device, one step of a zoom a frame.
 *
 *     mandelbrot [--frames N] [--seconds S] [--size WIDTHxHEIGHT] [--iterations N] [--rows N] [--ahead N]
 *                [--output FILE]
 *
 * Prints a line of JSON for the device, for each frame and for the end. The arithmetic uses
 * integers, so a frame has the same checksum on every device. Without --frames and --seconds it
 * draws until SIGINT or SIGTERM. Unless it ends with an error, it then writes the last frame to
 * FILE, as PPM.
 *
 * A frame is drawn in bands of --rows rows, each by a separate kernel, so that no kernel keeps the
 * device for long. --ahead frames are queued at a time, so that the device does not wait for this
 * program.
 *
 * Exit status: 0, 1 for errors of files and memory, 2 for the command line, 3 if OpenCL reports an error.
 */
#define CL_TARGET_OPENCL_VERSION 120

#include <CL/cl.h>
#include <CL/cl_ext.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXIT_USAGE	2
#define EXIT_OPENCL	3
#define AHEAD_MAX	16u
#define NAME_BYTES	128u
/* Frames of one zoom; after them the zoom starts again. */
#define ZOOM_FRAMES	96u
/* Number of fractional bits of the fixed-point numbers. */
#define PLACES		28
#define CENTRE_X	(-199620395ll)	/* -0.7436438870 */
#define CENTRE_Y	35386747ll	/*  0.1318259042 */
#define WIDTH_AT_FIRST	(3ll << PLACES)

static const char source[] =
	"#define PLACES 28\n"
	"kernel void draw(global ushort *pixels, int width, long left, long top, long step, int iterations)\n"
	"{\n"
	"	int column = get_global_id(0), row = get_global_id(1);\n"
	"	long x = left + column * step, y = top + row * step;\n"
	"	long a = 0, b = 0, aa = 0, bb = 0;\n"
	"	int count = 0;\n"
	"\n"
	"	while (count < iterations && aa + bb <= (4L << (2 * PLACES))) {\n"
	"		b = ((a * b) >> (PLACES - 1)) + y;\n"
	"		a = ((aa - bb) >> PLACES) + x;\n"
	"		aa = a * a;\n"
	"		bb = b * b;\n"
	"		count++;\n"
	"	}\n"
	"	pixels[row * width + column] = count;\n"
	"}\n";

struct options {
	unsigned int width, height;
	unsigned int iterations;
	unsigned int rows;
	unsigned int ahead;
	uint64_t frames;	/* 0: no limit */
	double seconds;		/* 0: no limit */
	const char *output;
};

/* A frame under way, or an unused entry. */
struct frame {
	cl_mem pixels;
	cl_event done;
	cl_ushort *copy;
};

struct painter {
	struct options options;
	size_t pixel_count;
	cl_context context;
	cl_command_queue queue;
	cl_program program;
	cl_kernel kernel;
	struct frame frames[AHEAD_MAX];
	struct timespec started;
};

static volatile sig_atomic_t stopped;

static void stop(int number)
{
	(void)number;
	stopped = 1;
}

static const char usage[] =
	"usage: mandelbrot [OPTION]...\n"
	"  --frames N           end after N frames\n"
	"  --seconds S          end after S seconds\n"
	"  --size WIDTHxHEIGHT  of the picture (default 160x120)\n"
	"  --iterations N       at most for each pixel (default 256)\n"
	"  --rows N             of a picture drawn by one kernel (default 10)\n"
	"  --ahead N            frames under way at a time, 1 to 16 (default 3)\n"
	"  --output FILE        write the last frame there, as PPM\n";

static _Noreturn void refuse(const char *option, const char *value)
{
	fprintf(stderr, "mandelbrot: %s: '%s' is not allowed\n%s", option, value, usage);
	exit(EXIT_USAGE);
}

/* An OpenCL call has failed. */
static _Noreturn void fail(const char *call, cl_int error)
{
	static const struct {
		cl_int error;
		const char *name;
	} names[] = {
		{ CL_DEVICE_NOT_FOUND, "CL_DEVICE_NOT_FOUND" },
		{ CL_DEVICE_NOT_AVAILABLE, "CL_DEVICE_NOT_AVAILABLE" },
		{ CL_MEM_OBJECT_ALLOCATION_FAILURE, "CL_MEM_OBJECT_ALLOCATION_FAILURE" },
		{ CL_OUT_OF_RESOURCES, "CL_OUT_OF_RESOURCES" },
		{ CL_OUT_OF_HOST_MEMORY, "CL_OUT_OF_HOST_MEMORY" },
		{ CL_BUILD_PROGRAM_FAILURE, "CL_BUILD_PROGRAM_FAILURE" },
		{ CL_PLATFORM_NOT_FOUND_KHR, "CL_PLATFORM_NOT_FOUND_KHR: there is no OpenCL here" },
	};
	const char *name = "";

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (names[i].error == error)
			name = names[i].name;
	fprintf(stderr, "mandelbrot: %s: error %d %s\n", call, error, name);
	exit(EXIT_OPENCL);
}

static void check(const char *call, cl_int error)
{
	if (error)
		fail(call, error);
}

static unsigned int number(const char *option, const char *text, unsigned int most)
{
	unsigned long value;
	char *end;

	errno = 0;
	value = strtoul(text, &end, 10);
	if (errno || end == text || *end || *text == '-' || !value || value > most)
		refuse(option, text);
	return (unsigned int)value;
}

static double seconds(const char *text)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value > 0 && value < 1e9))
		refuse("--seconds", text);
	return value;
}

static void size(struct options *options, const char *text)
{
	char end;

	if (sscanf(text, "%ux%u%c", &options->width, &options->height, &end) != 2 ||
	    !options->width || options->width > 8192 || !options->height ||
	    options->height > 8192)
		refuse("--size", text);
}

static void read_options(struct options *options, int argc, char **argv)
{
	static const struct option names[] = {
		{ "frames", 1, NULL, 'f' }, { "seconds", 1, NULL, 's' }, { "size", 1, NULL, 'w' },
		{ "iterations", 1, NULL, 'i' }, { "rows", 1, NULL, 'r' }, { "ahead", 1, NULL, 'a' },
		{ "output", 1, NULL, 'o' }, { "help", 0, NULL, 'h' }, { 0 },
	};
	int option;

	*options = (struct options){
		.width = 160, .height = 120, .iterations = 256, .rows = 10, .ahead = 3,
	};
	while ((option = getopt_long(argc, argv, "", names, NULL)) != -1) {
		switch (option) {
		case 'f':
			options->frames = number("--frames", optarg, UINT32_MAX);
			break;
		case 's':
			options->seconds = seconds(optarg);
			break;
		case 'w':
			size(options, optarg);
			break;
		case 'i':
			options->iterations = number("--iterations", optarg, UINT16_MAX);
			break;
		case 'r':
			options->rows = number("--rows", optarg, 8192);
			break;
		case 'a':
			options->ahead = number("--ahead", optarg, AHEAD_MAX);
			break;
		case 'o':
			options->output = optarg;
			break;
		case 'h':
			fputs(usage, stdout);
			exit(0);
		default:
			fputs(usage, stderr);
			exit(EXIT_USAGE);
		}
	}
	if (optind != argc)
		refuse("argument", argv[optind]);
}

static uint64_t elapsed_ns(const struct timespec *since)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)(now.tv_sec - since->tv_sec) * 1000000000u + (uint64_t)now.tv_nsec -
	       (uint64_t)since->tv_nsec;
}

/* A character that JSON allows unescaped; any other becomes a blank. */
static void clean(char *text)
{
	for (; *text; text++)
		if (*text < ' ' || *text > '~' || *text == '"' || *text == '\\')
			*text = ' ';
}

static cl_device_id find_device(void)
{
	char platform_name[NAME_BYTES] = "", device_name[NAME_BYTES] = "";
	cl_platform_id platform;
	cl_device_id device;

	check("clGetPlatformIDs", clGetPlatformIDs(1, &platform, NULL));
	check("clGetDeviceIDs", clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
	/* Names that are too long stay empty. */
	clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof(platform_name), platform_name, NULL);
	clGetDeviceInfo(device, CL_DEVICE_NAME, sizeof(device_name), device_name, NULL);
	clean(platform_name);
	clean(device_name);
	printf("{\"record\": \"device\", \"platform\": \"%s\", \"name\": \"%s\"}\n", platform_name,
	       device_name);
	return device;
}

static void build(struct painter *painter, cl_device_id device)
{
	const char *text = source;
	char log[4096] = "";
	cl_int error;

	painter->program = clCreateProgramWithSource(painter->context, 1, &text, NULL, &error);
	check("clCreateProgramWithSource", error);
	error = clBuildProgram(painter->program, 1, &device, "", NULL, NULL);
	if (error == CL_BUILD_PROGRAM_FAILURE) {
		clGetProgramBuildInfo(painter->program, device, CL_PROGRAM_BUILD_LOG,
				      sizeof(log), log, NULL);
		fprintf(stderr, "%s\n", log);
	}
	check("clBuildProgram", error);
	painter->kernel = clCreateKernel(painter->program, "draw", &error);
	check("clCreateKernel", error);
}

static void prepare(struct painter *painter)
{
	size_t bytes = painter->pixel_count * sizeof(cl_ushort);
	cl_device_id device = find_device();
	cl_int error;

	painter->context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
	check("clCreateContext", error);
	painter->queue = clCreateCommandQueue(painter->context, device, 0, &error);
	check("clCreateCommandQueue", error);
	build(painter, device);
	for (unsigned int i = 0; i < painter->options.ahead; i++) {
		struct frame *frame = &painter->frames[i];

		frame->pixels = clCreateBuffer(painter->context, CL_MEM_WRITE_ONLY, bytes, NULL,
					       &error);
		check("clCreateBuffer", error);
		frame->copy = malloc(bytes);
		if (!frame->copy) {
			fprintf(stderr, "mandelbrot: no memory for %zu bytes\n", bytes);
			exit(EXIT_FAILURE);
		}
	}
}

/* The distance of two pixels of a frame. */
static cl_long step_of(const struct options *options, uint64_t frame)
{
	cl_long step = WIDTH_AT_FIRST / options->width;

	for (uint64_t i = 0; i < frame % ZOOM_FRAMES; i++)
		step -= step / 16;
	return step;
}

static void set_arguments(struct painter *painter, cl_mem *pixels, uint64_t frame)
{
	const struct options *options = &painter->options;
	cl_int width = (cl_int)options->width, iterations = (cl_int)options->iterations;
	cl_long step = step_of(options, frame);
	cl_long left = CENTRE_X - step * options->width / 2;
	cl_long top = CENTRE_Y - step * options->height / 2;
	const struct {
		size_t bytes;
		const void *value;
	} arguments[] = {
		{ sizeof(*pixels), pixels }, { sizeof(width), &width }, { sizeof(left), &left },
		{ sizeof(top), &top }, { sizeof(step), &step }, { sizeof(iterations), &iterations },
	};

	for (cl_uint i = 0; i < sizeof(arguments) / sizeof(arguments[0]); i++)
		check("clSetKernelArg", clSetKernelArg(painter->kernel, i, arguments[i].bytes,
						       arguments[i].value));
}

/* Queues all bands of a frame without waiting. */
static void submit(struct painter *painter, struct frame *frame, uint64_t number)
{
	const struct options *options = &painter->options;

	set_arguments(painter, &frame->pixels, number);
	for (unsigned int row = 0; row < options->height; row += options->rows) {
		unsigned int left = options->height - row;
		size_t offset[2] = { 0, row };
		size_t items[2] = { options->width, left < options->rows ? left : options->rows };

		check("clEnqueueNDRangeKernel",
		      clEnqueueNDRangeKernel(painter->queue, painter->kernel, 2, offset, items,
					     NULL, 0, NULL, NULL));
	}
	check("clEnqueueReadBuffer",
	      clEnqueueReadBuffer(painter->queue, frame->pixels, CL_FALSE, 0,
				  painter->pixel_count * sizeof(cl_ushort), frame->copy, 0, NULL,
				  &frame->done));
	check("clFlush", clFlush(painter->queue));
}

/* FNV-1a over the lower and the upper byte of each pixel. */
static uint64_t checksum(const cl_ushort *pixels, size_t count)
{
	uint64_t sum = 0xcbf29ce484222325u;

	for (size_t i = 0; i < count; i++) {
		sum = (sum ^ (pixels[i] & 0xff)) * 0x100000001b3u;
		sum = (sum ^ (pixels[i] >> 8)) * 0x100000001b3u;
	}
	return sum;
}

/* Waits for a frame and reports it. */
static void finish(struct painter *painter, struct frame *frame, uint64_t number)
{
	cl_int status;

	check("clWaitForEvents", clWaitForEvents(1, &frame->done));
	check("clGetEventInfo", clGetEventInfo(frame->done, CL_EVENT_COMMAND_EXECUTION_STATUS,
					       sizeof(status), &status, NULL));
	if (status < 0)
		fail("clEnqueueReadBuffer", status);
	check("clReleaseEvent", clReleaseEvent(frame->done));
	printf("{\"record\": \"frame\", \"frame\": %" PRIu64 ", \"checksum\": \"%016" PRIx64
	       "\", \"wall_ns\": %" PRIu64 "}\n",
	       number, checksum(frame->copy, painter->pixel_count),
	       elapsed_ns(&painter->started));
	fflush(stdout);
}

static bool goes_on(const struct painter *painter, uint64_t frame)
{
	const struct options *options = &painter->options;

	return !stopped && (!options->frames || frame < options->frames) &&
	       (!options->seconds || (double)elapsed_ns(&painter->started) < options->seconds * 1e9);
}

/* Returns the number of frames drawn. */
static uint64_t draw(struct painter *painter)
{
	unsigned int ahead = painter->options.ahead;
	uint64_t submitted = 0, finished = 0;

	for (; goes_on(painter, submitted); submitted++) {
		struct frame *frame = &painter->frames[submitted % ahead];

		if (submitted - finished == ahead)
			finish(painter, frame, finished++);
		submit(painter, frame, submitted);
	}
	for (; finished < submitted; finished++)
		finish(painter, &painter->frames[finished % ahead], finished);
	return finished;
}

/* Rises to 255 and falls again, without a jump. */
static unsigned char wave(unsigned int value)
{
	unsigned int place = value % 512;

	return (unsigned char)(place < 256 ? place : 511 - place);
}

static void put_pixel(FILE *file, unsigned int count, unsigned int most)
{
	unsigned char colour[3] = { 0, 0, 0 };

	if (count < most) {
		colour[0] = wave(4 * count);
		colour[1] = wave(3 * count);
		colour[2] = wave(100 + 5 * count);
	}
	fwrite(colour, 1, sizeof(colour), file);
}

static void write_picture(const struct painter *painter, const cl_ushort *pixels)
{
	const struct options *options = &painter->options;
	FILE *file = fopen(options->output, "wb");
	bool failed = !file;

	if (file) {
		fprintf(file, "P6\n%u %u\n255\n", options->width, options->height);
		for (size_t i = 0; i < painter->pixel_count; i++)
			put_pixel(file, pixels[i], options->iterations);
		failed = ferror(file);
		failed |= fclose(file) != 0;
	}
	if (failed) {
		fprintf(stderr, "mandelbrot: %s: %s\n", options->output, strerror(errno));
		exit(EXIT_FAILURE);
	}
}

static void release(struct painter *painter)
{
	for (unsigned int i = 0; i < painter->options.ahead; i++) {
		check("clReleaseMemObject", clReleaseMemObject(painter->frames[i].pixels));
		free(painter->frames[i].copy);
	}
	check("clReleaseKernel", clReleaseKernel(painter->kernel));
	check("clReleaseProgram", clReleaseProgram(painter->program));
	check("clReleaseCommandQueue", clReleaseCommandQueue(painter->queue));
	check("clReleaseContext", clReleaseContext(painter->context));
}

int main(int argc, char **argv)
{
	const struct sigaction ends = { .sa_handler = stop };
	struct painter painter = { 0 };
	uint64_t frames;

	read_options(&painter.options, argc, argv);
	painter.pixel_count = (size_t)painter.options.width * painter.options.height;
	sigaction(SIGINT, &ends, NULL);
	sigaction(SIGTERM, &ends, NULL);
	prepare(&painter);
	clock_gettime(CLOCK_MONOTONIC, &painter.started);
	frames = draw(&painter);
	if (painter.options.output && frames)
		write_picture(&painter, painter.frames[(frames - 1) % painter.options.ahead].copy);
	printf("{\"record\": \"end\", \"frames\": %" PRIu64 ", \"wall_ns\": %" PRIu64 "}\n", frames,
	       elapsed_ns(&painter.started));
	release(&painter);
	if (fflush(stdout)) {
		fprintf(stderr, "mandelbrot: standard output: %s\n", strerror(errno));
		return EXIT_FAILURE;
	}
	return 0;
}
