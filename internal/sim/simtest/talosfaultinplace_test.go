package simtest

import (
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// faultsInPlace: those of upgrades in place alone.
func faultsInPlace() map[string]*talosFault {
	rows := map[string]*talosFault{
		"it comes back as the old version": {
			o: sim.Options{TalosVersion: "v1.12.6"}, first: newVersion, begins: breakInstaller(talosapi.RollsBack), mends: mendInstaller, remedy: recreated, parks: true,
			says: []string{"it came back as its old system: Talos v1.12.6 → v1.13.9", "talosctl -n 127.42.7.31 dmesg shows why", "not tried in place on it again"}, stands: untouched,
		},
		"it comes back as another build": {
			at: "upgrade/reboot", begins: installedBy("cp1"),
			says: []string{"it came back neither as its old system nor as the one that was installed: ", "someone else has installed a system on it meanwhile", "recast roll continues"}, stands: untouched,
		},
		"the new image loops": {
			roll: []string{"bootFailure: stop"}, begins: breakImage(talosapi.Loops), mends: inTurn(breakImage(talosapi.Sound), switchedOff, poweredOn),
			says: []string{"wk1 did not come back from its upgrade", "gave up after 5m2s", "look at its console in Proxmox: the boot menu has the previous entry"}, stands: "on, cordoned",
		},
		"the new image hangs": {
			roll: []string{"bootFailure: reimage"}, first: published, begins: breakImage(talosapi.Hangs), remedy: (*talosScene).again, parks: true,
			says: []string{"wk1 did not come back from its upgrade", "it was reimaged and runs build", "the disk with the system that does not boot is parked"}, stands: untouched,
		},
		"the new image never gets ready": {
			begins: breakImage(talosapi.Unready), remedy: (*talosScene).again,
			says: []string{"wk1 did not come back from its upgrade", "stage booting, not ready: services: kubelet not running", "and was rolled back", "not tried in place on it again"}, stands: untouched,
		},
		"someone has installed another build": {
			begins: inTurn(published, installedBy("cp1")), mends: rebooted,
			kind: fault.Refused, says: []string{"talos-v1.13.9~1.efi is installed and waits for a reboot", "reboot it first, or use recreate or reimage"}, stands: untouched,
		},
		"the talosconfig expires while it reboots": {
			roll: []string{"bootFailure: reimage"}, first: published, begins: expiring(45 * time.Second),
			kind: fault.Config, says: []string{"its certificate expired on 2000-01-01", "talosctl config new"}, stands: "on, cordoned",
		},
		"only we do not reach the new system": {
			roll: []string{"bootFailure: reimage"}, first: published, at: "wait-healthy", begins: led("cp1"), mends: straight,
			says: []string{"and it can't be asked to roll back", "Kubernetes has node wk1 Ready after a reboot, so nothing is done to it"}, stands: "on, cordoned",
		},
		"a control plane comes back without etcd": {
			o: threePlanes, rolls: "cp2", roll: []string{"bootFailure: stop"}, at: "upgrade/reboot",
			begins: breakEtcd(talosapi.EtcdFault{Down: true}, "cp2"), mends: breakEtcd(talosapi.EtcdFault{}, "cp2"),
			says: []string{"stage booting, not ready: services: etcd not running", "etcd: cp2 does not answer"}, stands: "on, cordoned",
		},
		"another control plane loses etcd meanwhile": {
			o: threePlanes, rolls: "cp2", at: "upgrade/reboot", begins: breakEtcd(talosapi.EtcdFault{Down: true}, "cp3"), mends: breakEtcd(talosapi.EtcdFault{}, "cp3"),
			says: []string{"cp2 did not come back from its upgrade", "and it is not asked to boot its previous system: etcd would not survive losing cp2: cp3 does not answer"}, stands: "on, cordoned",
		},
		"the installer fails": {
			begins: breakImage(talosapi.InstallerFails), mends: breakImage(talosapi.Sound),
			says: []string{"failed to copy boot assets: input/output error", "wk1 still runs its old system and takes pods again"}, stands: untouched,
		},
	}
	for _, f := range rows {
		f.strategy = cluster.InPlace
	}
	return rows
}

// normalTroubles only look like faults. A rebooting machine's API is half dead for a
// while: the watch may outlast that, so the user need not see it.
func normalTroubles() map[string]*talosFault {
	return map[string]*talosFault{
		"a half-dead API while it reboots":           {stands: untouched},
		"a half-dead API while it reboots, in place": {strategy: cluster.InPlace, stands: untouched},
		"a half-dead API while it reboots, in place with the old API": {
			o: sim.Options{TalosVersion: "v1.12.6"}, strategy: cluster.InPlace, stands: untouched,
		},
		"a half-dead API while it reboots, reimaged":      {strategy: cluster.Reimage, o: threePlanes, rolls: "cp2", stands: untouched},
		"a half-dead API while it reboots, unattended":    {o: unattended, stands: untouched},
		"someone has installed a build and not booted it": {begins: inTurn(published, installedBy("cp1")), stands: untouched},
		"the endpoint is an address that moves": {
			o: threePlanes, rolls: "cp2", first: virtualEndpoint, at: "take-down/stop", begins: func(s *talosScene) { s.lead(virtual, "cp3") }, stands: untouched,
		},
	}
}

func poweredOn(s *talosScene) { must(s.t, s.World.PowerOn(s.machine().VMID)) }
