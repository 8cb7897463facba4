// SPDX-License-Identifier: GPL-2.0
/*
 * The engine "edu": QEMU's teaching device (docs/specs/edu.rst), which computes
 * factorials by itself and interrupts when it is done.
 *
 * This is the hard case of an engine: a job can be neither split nor stopped, and the
 * device cannot be reset. So an item must be predicted to fit max_chunk, and its real
 * duration is charged. A job that is not done within a multiple of its prediction
 * wedges the engine until it is started again. There is at most one job at a time, and
 * the thread that started it waits for it.
 */
#include <linux/debugfs.h>
#include <linux/interrupt.h>
#include <linux/iopoll.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/wait.h>

#include "engine/engine.h"
#include "engine/processor.h"
#include "options.h"

#define EDU_VENDOR_ID		0x1234
#define EDU_DEVICE_ID		0x11e8

#define EDU_REG_ID		0x00
#define EDU_REG_FACT		0x08	/* write: begin; read: result */
#define EDU_REG_STATUS		0x20
#define EDU_REG_IRQ_STATUS	0x24
#define EDU_REG_IRQ_ACK		0x64

#define EDU_ID			0x010000ed
#define EDU_STATUS_BUSY		BIT(0)
#define EDU_STATUS_IRQ		BIT(7)	/* interrupt when done */

#define EDU_CALIBRATION_RUNS	8
#define EDU_CALIBRATION_N	1000000U
#define EDU_CALIBRATION_N_MAX	64000000U
#define EDU_CALIBRATION_RATIO	8	/* shortest long job, in fixed times */
#define EDU_LATE_FACTOR		10	/* largest charge of a job, in predictions */
#define EDU_SWITCH_MAX_NS	(50 * NSEC_PER_USEC)
#define EDU_IDLE_US		(2 * USEC_PER_SEC)

static struct vgpu_option edu_timeout_ms = {
	.value = 2 * MSEC_PER_SEC,
	.min = 1,
	.max = VGPU_OPTION_MS_MAX,
};
module_param_cb(engine_timeout_ms, &vgpu_option_ops, &edu_timeout_ms, 0644);
MODULE_PARM_DESC(engine_timeout_ms,
		 "engine edu: a job is given up after ten times its predicted time, but not earlier than this, ms (default 2000)");

/**
 * struct edu - one function
 * @pdev: the function
 * @bar: registers of the function
 * @engine: the engine whose thread waits; NULL while calibrating
 * @wait: for @armed to be cleared
 * @lock: (spin, irq) protects @armed to @bound_ns
 * @armed: there is a job and it is not known to be done
 * @done_ns: when the last job was done
 * @bound_ns: latest time until which the job is charged
 * @base_ns: fixed time of a job, without its multiplications
 * @fact_ps: time of one multiplication, ps
 * @frozen: debugfs: pretend that the device stays busy
 * @debugfs: directory
 */
struct edu {
	struct pci_dev *pdev;
	void __iomem *bar;
	struct vgpu_engine *engine;
	wait_queue_head_t wait;
	spinlock_t lock;	/* the job */
	bool armed;
	u64 done_ns;
	u64 bound_ns;
	u64 base_ns;
	u32 fact_ps;
	bool frozen;
	struct dentry *debugfs;
};

/* A function that was pulled out reads as all ones, so it seems to be busy forever. */
static bool edu_is_busy(const struct edu *edu)
{
	return readl(edu->bar + EDU_REG_STATUS) & EDU_STATUS_BUSY || READ_ONCE(edu->frozen);
}

/*
 * The interrupt alone proves nothing: it may be spurious, or belong to a job that was
 * given up. The current job is done if a job is armed and the device is no longer
 * busy.
 */
static irqreturn_t edu_interrupt(int irq, void *data)
{
	struct edu *edu = data;
	u32 status = readl(edu->bar + EDU_REG_IRQ_STATUS);

	if (!status || PCI_POSSIBLE_ERROR(status))
		return IRQ_NONE;
	writel(status, edu->bar + EDU_REG_IRQ_ACK);
	spin_lock(&edu->lock);
	if (edu->armed && !edu_is_busy(edu)) {
		edu->armed = false;
		edu->done_ns = ktime_get_ns();
		if (edu->engine)
			vgpu_engine_busy_until(edu->engine, min(edu->done_ns, edu->bound_ns));
		wake_up(&edu->wait);
	}
	spin_unlock(&edu->lock);
	return IRQ_HANDLED;
}

/* The part of a job that uses no processor of the host. */
static u64 edu_compute_ns(const struct edu *edu, u32 n)
{
	return div_u64((u64)n * edu->fact_ps, 1000);
}

static u64 edu_predict_ns(const struct edu *edu, u32 n)
{
	return edu->base_ns + edu_compute_ns(edu, n);
}

static unsigned long edu_patience(const struct edu *edu, u32 n)
{
	u64 late_ms = div_u64(EDU_LATE_FACTOR * edu_predict_ns(edu, n), NSEC_PER_MSEC);

	return msecs_to_jiffies(max_t(u64, late_ms, READ_ONCE(edu_timeout_ms.value)));
}

static void edu_begin(struct edu *edu, u32 n, u64 bound_ns)
{
	spin_lock_irq(&edu->lock);
	edu->armed = true;
	edu->bound_ns = bound_ns;
	writel(n, edu->bar + EDU_REG_FACT);
	/*
	 * Wait until the device is busy before releasing the lock. Otherwise the
	 * interrupt of an earlier job could end this one.
	 */
	readl(edu->bar + EDU_REG_STATUS);
	spin_unlock_irq(&edu->lock);
}

/* Stop waiting for the job; true if it is done nevertheless. */
static bool edu_end(struct edu *edu, u64 *done_ns)
{
	bool done;

	spin_lock_irq(&edu->lock);
	done = !edu->armed || !edu_is_busy(edu);
	edu->armed = false;
	*done_ns = edu->done_ns;
	spin_unlock_irq(&edu->lock);
	return done;
}

static bool edu_should_stop(void)
{
	return current->flags & PF_KTHREAD && kthread_should_stop();
}

/*
 * Run one job. Returns 0 with @result and @done_ns; -ETIMEDOUT if it does not end;
 * -ENODEV if the function is gone; -ECANCELED if the thread must stop; -EIO if its
 * duration is unknown, because its interrupt was lost before there was a prediction.
 */
static int edu_run(struct edu *edu, u32 n, u64 *done_ns, u32 *result)
{
	u64 start_ns = ktime_get_ns();
	u64 bound_ns = start_ns + EDU_LATE_FACTOR * edu_predict_ns(edu, n);
	u64 begun_ns;
	bool done;

	/*
	 * Upper bound of the charge, until the interrupt sets the real end. It is
	 * needed because the interrupt may be lost, and any call of the scheduler
	 * charges the time until now.
	 */
	if (edu->engine)
		vgpu_engine_busy_until(edu->engine, bound_ns);
	edu_begin(edu, n, bound_ns);
	begun_ns = ktime_get_ns();
	wait_event_idle_timeout(edu->wait, !READ_ONCE(edu->armed) || edu_should_stop(),
				edu_patience(edu, n));
	if (edu->engine)
		vgpu_engine_slept(edu->engine, begun_ns);
	done = edu_end(edu, done_ns);
	if (readl(edu->bar + EDU_REG_ID) != EDU_ID)
		return -ENODEV;
	if (!done)
		return edu_should_stop() ? -ECANCELED : -ETIMEDOUT;
	if (*done_ns < start_ns) {
		dev_warn_ratelimited(&edu->pdev->dev, "engine edu: an interrupt was lost\n");
		if (!edu->engine)
			return -EIO;
		*done_ns = start_ns + edu_predict_ns(edu, n);
		vgpu_engine_busy_until(edu->engine, *done_ns);
	}
	*result = readl(edu->bar + EDU_REG_FACT);
	return 0;
}

static bool edu_execute(struct vgpu_engine *engine, struct vgpu_item *item, u64 limit_ns)
{
	struct edu *edu = engine->state;
	u32 n = le32_to_cpu(item->desc.arg[0]);
	u64 done_ns;
	u32 result;
	int ret;

	if (le16_to_cpu(item->desc.op) == VGPU_OP_NOP) {
		vgpu_engine_set_pace(engine, VGPU_ENGINE_BRIEF);
		return true;
	}
	vgpu_engine_set_pace(engine, edu_compute_ns(edu, n) < VGPU_ENGINE_BRIEF_NS ?
			     VGPU_ENGINE_BRIEF : VGPU_ENGINE_WAITS);
	ret = edu_run(edu, n, &done_ns, &result);
	if (!ret) {
		item->result = result;
		return true;
	}
	if (ret != -ECANCELED) {
		pci_err(edu->pdev, "engine edu: wedged, %s; bind the driver again\n",
			ret == -ENODEV ? "the function is gone" : "a job timed out");
		vgpu_engine_wedge(engine);
	}
	return false;
}

static u64 edu_estimate_ns(struct vgpu_engine *engine, const struct vgpu_item *item)
{
	if (le16_to_cpu(item->desc.op) == VGPU_OP_NOP)
		return 0;
	return edu_predict_ns(engine->state, le32_to_cpu(item->desc.arg[0]));
}

/* The shortest of several runs of one size: interruptions only ever add time. */
static int edu_least_ns(struct edu *edu, u32 n, u64 *least_ns)
{
	u64 done_ns;
	u32 result;
	int i, ret;

	*least_ns = U64_MAX;
	for (i = 0; i < EDU_CALIBRATION_RUNS; i++) {
		u64 start_ns = ktime_get_ns();

		ret = edu_run(edu, n, &done_ns, &result);
		if (ret)
			return ret;
		*least_ns = min(*least_ns, done_ns - start_ns);
	}
	return 0;
}

/*
 * A job of the previous owner of the function may still run. The time of the
 * multiplications includes the fixed time of a job, so that predictions are too long
 * rather than too short: a host that was late for each short job must not make long
 * jobs look short.
 */
static int edu_calibrate(struct edu *edu, struct vgpu_calibration *calibration)
{
	u64 base_ns, full_ns;
	u32 status, n;
	int ret;

	if (readl(edu->bar + EDU_REG_ID) != EDU_ID)
		return -ENODEV;
	ret = readl_poll_timeout(edu->bar + EDU_REG_STATUS, status,
				 !(status & EDU_STATUS_BUSY), USEC_PER_MSEC, EDU_IDLE_US);
	if (ret)
		return -EBUSY;
	writel(EDU_STATUS_IRQ, edu->bar + EDU_REG_STATUS);
	ret = edu_least_ns(edu, 0, &base_ns);
	for (n = EDU_CALIBRATION_N; !ret; n *= 4) {
		ret = edu_least_ns(edu, n, &full_ns);
		if (full_ns >= EDU_CALIBRATION_RATIO * base_ns || n >= EDU_CALIBRATION_N_MAX)
			break;
	}
	if (ret)
		return ret;
	edu->base_ns = base_ns;
	edu->fact_ps = clamp_t(u64, div_u64(full_ns * 1000, n), 1, USEC_PER_SEC);
	calibration->fact_ps = edu->fact_ps;
	calibration->switch_cost_ns = clamp_t(u64, base_ns, 1, EDU_SWITCH_MAX_NS);
	pci_info(edu->pdev, "engine edu: a job takes %llu ns and %u ps per multiplication\n",
		 edu->base_ns, edu->fact_ps);
	return 0;
}

static bool edu_drives(struct pci_dev *pdev)
{
	return pdev->vendor == EDU_VENDOR_ID && pdev->device == EDU_DEVICE_ID;
}

static int edu_take(struct edu *edu)
{
	struct pci_dev *pdev = edu->pdev;
	int ret;

	ret = pci_enable_device(pdev);
	if (ret)
		return ret;
	ret = pci_request_region(pdev, 0, "vgpumgr");
	if (ret)
		goto disable;
	edu->bar = pci_iomap(pdev, 0, 0);
	if (!edu->bar) {
		ret = -ENOMEM;
		goto region;
	}
	pci_set_master(pdev);
	ret = pci_alloc_irq_vectors(pdev, 1, 1, PCI_IRQ_MSI);
	if (ret < 0)
		goto unmap;
	ret = request_irq(pci_irq_vector(pdev, 0), edu_interrupt, 0, "vgpumgr-edu", edu);
	if (ret)
		goto vectors;
	return 0;

vectors:
	pci_free_irq_vectors(pdev);
unmap:
	pci_clear_master(pdev);
	pci_iounmap(pdev, edu->bar);
region:
	pci_release_region(pdev, 0);
disable:
	pci_disable_device(pdev);
	return ret;
}

static void edu_give_back(struct edu *edu)
{
	struct pci_dev *pdev = edu->pdev;

	writel(0, edu->bar + EDU_REG_STATUS);
	free_irq(pci_irq_vector(pdev, 0), edu);
	pci_free_irq_vectors(pdev);
	pci_clear_master(pdev);
	pci_iounmap(pdev, edu->bar);
	pci_release_region(pdev, 0);
	pci_disable_device(pdev);
}

static void *edu_start(struct vgpu_engine *engine, struct pci_dev *pdev,
		       struct vgpu_calibration *calibration)
{
	struct edu *edu;
	int ret;

	edu = kzalloc(sizeof(*edu), GFP_KERNEL);
	if (!edu)
		return ERR_PTR(-ENOMEM);
	edu->pdev = pdev;
	init_waitqueue_head(&edu->wait);
	spin_lock_init(&edu->lock);
	ret = edu_take(edu);
	if (ret)
		goto free;
	ret = edu_calibrate(edu, calibration);
	if (ret)
		goto give_back;
	edu->engine = engine;
	edu->debugfs = debugfs_create_dir(pci_name(pdev), vgpu_debugfs);
	debugfs_create_bool("frozen", 0600, edu->debugfs, &edu->frozen);
	return edu;

give_back:
	edu_give_back(edu);
free:
	kfree(edu);
	pci_err(pdev, "engine edu does not start: %d\n", ret);
	return ERR_PTR(ret);
}

static void edu_stop(void *state)
{
	struct edu *edu = state;

	debugfs_remove_recursive(edu->debugfs);
	edu_give_back(edu);
	kfree(edu);
}

const struct vgpu_engine_ops vgpu_edu_engine = {
	.name = "edu",
	.operations = BIT(VGPU_OP_NOP) | BIT(VGPU_OP_FACT),
	.whole_items = true,
	.drives = edu_drives,
	.start = edu_start,
	.stop = edu_stop,
	.execute = edu_execute,
	.estimate_ns = edu_estimate_ns,
};
