package talosapi

import (
	"slices"
	"strings"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
)

// phase is one step of a machined sequence, with its parallel tasks.
type phase struct {
	name  string
	tasks []string
	skip  bool // counted as a phase of the sequence but never run
}

// The sequences' phases with their tasks (v1alpha1_sequencer.go and
// v1alpha1_sequencer_tasks.go of 1.12 to 1.14): "+" is since 1.14, "-" until 1.13, "?" for
// machines that the lab does not have.
var (
	initializePhases = []string{
		"systemRequirements enforceKSPPRequirements",
		"-earlyServices startUdevd startMachined startApid startAuditd startSyslogd startContainerd",
		"+earlyServices startMachined waitForUdevd startApid startAuditd startSyslogd startContainerd",
		"-usb waitForUSB", "meta reloadMeta", "?cleanupBootloader cleanupBootloader", "dashboard startDashboard",
		"?wipeDisks resetSystemDiskPartitions", "?haltIfInstalled haltIfInstalled", "config loadConfig",
	}
	installPhases = []string{
		"env setUserEnvVars", "install install", "meta reloadMeta", "saveMeta flushMeta",
		"+denyNewServices denyNewServices", "+stopContainers teardownContainerLifecycle",
		"volumeFinalize teardownLifecycle", "stopEverything stopAllServices", "kexec kexecPrepare", "reboot reboot",
	}
	bootPhases = []string{
		"memorySizeCheck memorySizeCheck", "diskSizeCheck diskSizeCheck", "env setUserEnvVars waitForCARoots", "dbus startDBus",
		"ephemeral mountEphemeralPartition", "-udevSetup writeUdevRules", "+promotableVolumes mountPromotableSystemPartitions",
		"userDisks mountUserDisks", "userSetup writeUserFiles", "startEverything startAllServices",
	}
	preShutdownPhases = []string{"+preShutdown preShutdownServices", "dbus stopDBus"}
	stopAllPhases     = []string{
		"+denyNewServices denyNewServices", "+stopContainers teardownContainerLifecycle", "stopServices stopServicesForUpgrade",
		"umount unmountPodMounts", "unmountBind unmountSystemDiskBindMounts", "+unmountPromotable unmountPromotableSystemPartitions",
		"unmountSystem unmountEphemeralPartition", "volumeFinalize teardownLifecycle",
	}
	stopPhases   = []string{"stopEverything stopAllServices"}
	kexecPhases  = []string{"+stopEverything stopAllServices", "kexec kexecPrepare", "-stopEverything stopAllServices"}
	drainPhases  = []string{"drain cordonAndDrainNode"}
	podsPhases   = []string{"cleanup stopAllPods"}
	rebootPhases = []string{"reboot reboot"}
	poweroff     = []string{"shutdown shutdown"}
)

// phases are the phases of a release.
func (r release) phases(lists ...[]string) []phase {
	other := "+"
	if r.fourteen() {
		other = "-"
	}
	var all []phase
	for _, text := range slices.Concat(lists...) {
		if strings.HasPrefix(text, other) {
			continue
		}
		words := strings.Fields(strings.TrimLeft(text, "+-?"))
		tasks := slices.DeleteFunc(words[1:], func(task string) bool { return task == "startApid" && r.bareMaintenance })
		all = append(all, phase{name: words[0], tasks: tasks, skip: strings.HasPrefix(text, "?")})
	}
	return all
}

// rebooting are the phases of a reboot through the API.
func (r release) rebooting() []phase {
	return r.phases(podsPhases, preShutdownPhases, stopAllPhases, kexecPhases, rebootPhases)
}

// shuttingDown are the phases of a shutdown.
func (r release) shuttingDown(drain bool) []phase {
	lists := [][]string{{"storeShutdown storeShutdownEmergency"}}
	if drain {
		lists = append(lists, drainPhases)
	}
	return r.phases(append(lists, podsPhases, preShutdownPhases, stopAllPhases, stopPhases, poweroff)...)
}

// upgrading are the phases of an upgrade that the machine runs itself.
func (r release) upgrading(then outcome) []phase {
	lists := [][]string{
		{"+denyNewServices denyNewServices"},
		drainPhases, podsPhases, preShutdownPhases,
		{
			"+stopContainers teardownContainerLifecycle", "stopServices stopServicesForUpgrade", "unmount unmountPodMounts",
			"unmountBind unmountSystemDiskBindMounts", "+unmountPromotable unmountPromotableSystemPartitions",
			"unmountSystem unmountEphemeralPartition", "volumeFinalize teardownLifecycle", "upgrade upgrade", "meta reloadMeta",
		},
	}
	if then == kexec {
		lists = append(lists, []string{"kexec kexecPrepare"})
	}
	return r.phases(append(lists, stopPhases, rebootPhases)...)
}

// resetting are the phases of a reset; member: it is an etcd member.
func (r release) resetting(req *machineapi.ResetRequest, member bool) []phase {
	system, partitions := req.GetMode() != machineapi.ResetRequest_USER_DISKS, len(req.GetSystemPartitionsToWipe()) > 0
	lists := [][]string{podsPhases, preShutdownPhases}
	if req.GetGraceful() {
		lists = [][]string{drainPhases, {"cleanup removeAllPods"}, preShutdownPhases}
	}
	when := func(yes bool, phases []string) {
		if yes {
			lists = append(lists, phases)
		}
	}
	when(req.GetGraceful() && member, []string{"leave leaveEtcd"})
	lists = append(lists, []string{"preReset sendResetSignal"}, stopAllPhases)
	when(partitions, kexecPhases)
	when(!partitions, stopPhases)
	lists = append(lists, []string{"forceCleanup forceCleanup"})
	when(system && !partitions, []string{"reset resetSystemDisk"})
	when(system && partitions, []string{"resetSpec resetSystemDiskSpec"})
	when(len(req.GetUserDisksToWipe()) > 0, []string{"resetUserDisks resetUserDisks"})
	when(req.GetReboot(), rebootPhases)
	when(!req.GetReboot(), poweroff)
	return r.phases(lists...)
}
