// SPDX-License-Identifier: GPL-2.0
#include "status.h"

#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "exit.h"
#include "report.h"
#include "vgpu_device.h"

#define DRIVER "vgpu_guest"
#define LIBRARY "/usr/lib/vgpumgr/libvgpu-opencl.so"
#define ICD "/etc/OpenCL/vendors/vgpumgr.icd"

struct status {
	const char *root;
	bool json;
	bool device_bad;
	bool software_bad;
};

static void tell(const struct status *status, const char *part, const char *verdict,
		 const char *format, va_list args)
{
	struct report report;
	char text[512];

	vsnprintf(text, sizeof(text), format, args);
	if (!status->json) {
		printf("%-9s %-3s %s\n", part, verdict, text);
		return;
	}
	report_begin(&report, true);
	report_text(&report, "record", "status");
	report_text(&report, "part", part);
	report_bool(&report, "ok", !strcmp(verdict, "ok"));
	report_text(&report, "text", text);
	report_end(&report);
}

static void good(const struct status *status, const char *part, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
static void bad(const struct status *status, bool *where, const char *part, const char *format,
		...) __attribute__((format(printf, 4, 5)));

static void good(const struct status *status, const char *part, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	tell(status, part, "ok", format, args);
	va_end(args);
}

/* @where: the verdict of @status that this part belongs to; set to true. */
static void bad(const struct status *status, bool *where, const char *part, const char *format,
		...)
{
	va_list args;

	*where = true;
	va_start(args, format);
	tell(status, part, "no", format, args);
	va_end(args);
}

static void path_of(const struct status *status, char *path, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Build the path of a file below the root; @path has PATH_MAX bytes. */
static void path_of(const struct status *status, char *path, const char *format, ...)
{
	int length = snprintf(path, PATH_MAX, "%s", status->root);
	va_list args;

	va_start(args, format);
	vsnprintf(path + length, PATH_MAX - length, format, args);
	va_end(args);
}

/* Read the first line of a file, empty if it cannot be read; returns 0 or an errno. */
static int read_line(const char *path, char *line, size_t bytes)
{
	FILE *file = fopen(path, "re");
	int error = 0;

	*line = '\0';
	if (!file)
		return errno;
	errno = 0;
	if (!fgets(line, bytes, file))
		error = errno;
	fclose(file);
	line[strcspn(line, "\n")] = '\0';
	return error;
}

static bool exists(const struct status *status, const char *pattern)
{
	char path[PATH_MAX];
	glob_t found;
	bool some;

	path_of(status, path, "%s", pattern);
	some = !glob(path, 0, NULL, &found);
	globfree(&found);
	return some;
}

/* Report why no driver is bound to the function. */
static void explain_no_driver(struct status *status)
{
	char pattern[PATH_MAX];
	struct utsname kernel;

	uname(&kernel);
	snprintf(pattern, sizeof(pattern), "/lib/modules/%s/updates/dkms/" DRIVER ".ko*",
		 kernel.release);
	if (exists(status, "/sys/module/" DRIVER))
		bad(status, &status->device_bad, "driver",
		    DRIVER " is loaded but not bound to the function; see dmesg");
	else if (exists(status, pattern))
		bad(status, &status->device_bad, "driver",
		    DRIVER " is not loaded: modprobe " DRIVER);
	else
		bad(status, &status->device_bad, "driver",
		    "no " DRIVER " for kernel %s: install its headers, then dkms autoinstall",
		    kernel.release);
}

/* Is the vgpu driver bound to the function in the directory @function? */
static bool check_driver(struct status *status, const char *function)
{
	char path[PATH_MAX], target[PATH_MAX], version[64];
	const char *name;
	ssize_t length;

	snprintf(path, sizeof(path), "%s/driver", function);
	length = readlink(path, target, sizeof(target) - 1);
	if (length < 0) {
		explain_no_driver(status);
		return false;
	}
	target[length] = '\0';
	name = strrchr(target, '/') ? strrchr(target, '/') + 1 : target;
	if (strcmp(name, DRIVER)) {
		bad(status, &status->device_bad, "driver",
		    "the function is bound to %s instead of " DRIVER, name);
		return false;
	}
	path_of(status, path, "/sys/module/" DRIVER "/version");
	read_line(path, version, sizeof(version));
	good(status, "driver", DRIVER " %s", version);
	return true;
}

static void check_node(struct status *status, const char *name)
{
	char path[PATH_MAX];
	struct stat file;

	path_of(status, path, "/dev/%s", name);
	if (stat(path, &file)) {
		bad(status, &status->device_bad, "node", "/dev/%s: %s", name, strerror(errno));
		return;
	}
	if (access(path, R_OK | W_OK))
		bad(status, &status->device_bad, "node",
		    "/dev/%s is not accessible to this user: mode %#o instead of 0666", name,
		    file.st_mode & 0777);
	else if ((file.st_mode & 0666) != 0666)
		bad(status, &status->device_bad, "node",
		    "/dev/%s is not accessible to all users: mode %#o instead of 0666", name,
		    file.st_mode & 0777);
	else
		good(status, "node", "/dev/%s", name);
}

/* Count a word in a line of words. */
static unsigned int count(const char *line, const char *word)
{
	size_t length = strlen(word);
	unsigned int found = 0;

	for (; *line; line += strcspn(line, " "), line += *line == ' ')
		found += strcspn(line, " ") == length && !strncmp(line, word, length);
	return found;
}

static void check_windows(struct status *status, const char *directory)
{
	char path[PATH_MAX], states[256], size[32];
	unsigned int free, open, closing, lost, all;
	int error;

	snprintf(path, sizeof(path), "%s/size", directory);
	read_line(path, size, sizeof(size));
	snprintf(path, sizeof(path), "%s/states", directory);
	error = read_line(path, states, sizeof(states));
	if (error) {
		bad(status, &status->device_bad, "windows", "%s", strerror(error));
		return;
	}
	free = count(states, "free");
	open = count(states, "open");
	closing = count(states, "closing");
	lost = count(states, "lost");
	all = free + open + closing + lost;
	if (free + closing)
		good(status, "windows", "%u of %lu KiB: %u free, %u open, %u closing, %u lost",
		     all, strtoul(size, NULL, 10) / 1024, free, open, closing, lost);
	else
		bad(status, &status->device_bad, "windows",
		    "all %u are in use", all);
}

/* Check one virtual function. */
static void check_function(struct status *status, const char *directory)
{
	char pattern[PATH_MAX];
	glob_t found;

	good(status, "function", "%s", strrchr(directory, '/') + 1);
	if (!check_driver(status, directory))
		return;
	snprintf(pattern, sizeof(pattern), "%s/" DRIVER "/vgpu*-compute", directory);
	if (glob(pattern, 0, NULL, &found)) {
		bad(status, &status->device_bad, "windows",
		    "the device has none: the slice's engine on the host does not lend");
	} else {
		check_node(status, strrchr(found.gl_pathv[0], '/') + 1);
		check_windows(status, found.gl_pathv[0]);
	}
	globfree(&found);
}

static bool is_ours(const char *directory)
{
	char path[PATH_MAX], vendor[16], device[16];

	snprintf(path, sizeof(path), "%s/vendor", directory);
	read_line(path, vendor, sizeof(vendor));
	snprintf(path, sizeof(path), "%s/device", directory);
	read_line(path, device, sizeof(device));
	return strtoul(vendor, NULL, 0) == VGPU_PCI_VENDOR_ID &&
	       strtoul(device, NULL, 0) == VGPU_PCI_DEVICE_ID;
}

static void check_functions(struct status *status)
{
	unsigned int ours = 0;
	char pattern[PATH_MAX];
	glob_t found;

	path_of(status, pattern, "/sys/bus/pci/devices/*");
	if (!glob(pattern, 0, NULL, &found)) {
		for (size_t i = 0; i < found.gl_pathc; i++) {
			if (!is_ours(found.gl_pathv[i]))
				continue;
			check_function(status, found.gl_pathv[i]);
			ours++;
		}
	}
	globfree(&found);
	if (!ours)
		bad(status, &status->device_bad, "function",
		    "there is no PCI function %04x:%04x: no slice is attached to this VM",
		    VGPU_PCI_VENDOR_ID, VGPU_PCI_DEVICE_ID);
}

static void check_library(struct status *status)
{
	char path[PATH_MAX];

	path_of(status, path, LIBRARY);
	if (access(path, R_OK))
		bad(status, &status->software_bad, "library", LIBRARY ": %s", strerror(errno));
	else
		good(status, "library", LIBRARY);
}

/* Check the standard loader and the file that points it to the OpenCL library. */
static void check_loader(struct status *status)
{
	static const char *const places[] = {
		"/usr/lib/*/libOpenCL.so.1", "/usr/lib/libOpenCL.so.1",
		"/usr/lib64/libOpenCL.so.1", "/usr/local/lib/libOpenCL.so.1",
	};
	const char *elsewhere = getenv("OCL_ICD_VENDORS");
	char path[PATH_MAX], named[PATH_MAX];
	bool found = false;
	int error;

	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
		found = found || exists(status, places[i]);
	if (found)
		good(status, "loader", "libOpenCL.so.1");
	else
		bad(status, &status->software_bad, "loader",
		    "there is no libOpenCL.so.1: install ocl-icd-libopencl1");

	path_of(status, path, ICD);
	error = read_line(path, named, sizeof(named));
	if (error)
		bad(status, &status->software_bad, "icd", ICD ": %s", strerror(error));
	else if (strcmp(named, LIBRARY))
		bad(status, &status->software_bad, "icd", ICD " names %s instead of " LIBRARY,
		    *named ? named : "nothing");
	else if (elsewhere && *elsewhere)
		bad(status, &status->software_bad, "icd",
		    "OCL_ICD_VENDORS is set, so loaders ignore " ICD);
	else
		good(status, "icd", ICD);
}

int status_run(const char *root, bool json)
{
	struct status status = { .root = root, .json = json };

	check_functions(&status);
	check_library(&status);
	check_loader(&status);
	if (status.device_bad)
		return EXIT_DEVICE;
	return status.software_bad ? EXIT_WRONG : EXIT_OK;
}
